// The search for an allocation: plans are scored by a list schedule and by what they need of memory, and changed one
// proposal after another (Metropolis et al. 1953; of plans, Mei et al. 2024, arXiv:2406.14088, section 5).
//
// hpcrl/ops/search_chain.py computes the same chain in Python, proposal by proposal: all is in integers, so that no bit
// depends on a compiler, a processor or a library's logarithm. What the tables hold is described in hpcrl/ops/search.py.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

extern "C" {

// Filled by hpcrl.ops.search._Tables, in this order.
struct SearchTables {
    int64_t calls, meshes, places, capacity;
    int64_t steps, ahead, first, last;
    const int64_t *option_start, *mesh, *place, *spot, *nanoseconds, *is_released;
    const int64_t *stage_start, *lasting, *passing, *away, *moving;
    const int64_t *range_start, *range_first, *range_last;
    const int64_t *home, *role, *lag, *move_start, *spots, *move_nanoseconds;
    const int64_t *next_start, *next_call, *next_steps;
    const int64_t *on_mesh, *at_place;
    const int64_t *near_start, *near;
    const int64_t *kinds, *quantiles;
};
}

namespace {

constexpr int kCalls = 16;
constexpr int kTasks = 2 * kCalls;     // of a step: calls, and the move that each may wait for
constexpr int kSegments = 64;
constexpr int kSteps = 64;
constexpr int64_t kKinds = 16;         // entries of the table that draws a proposal's kind
constexpr int64_t kQuantiles = 4096;   // of the exponential distribution
constexpr int64_t kShift = 20;         // a quantile of 1 is 2^20
constexpr int64_t kAny = INT64_MAX;    // a limit that nothing is beyond
constexpr int64_t kNever = -(INT64_MAX / 4);

struct Score {
    int64_t excess, nanoseconds, moves;
    bool operator<(const Score& other) const {
        if (excess != other.excess) return excess < other.excess;
        if (nanoseconds != other.nanoseconds) return nanoseconds < other.nanoseconds;
        return moves < other.moves;
    }
    bool operator==(const Score& other) const {
        return excess == other.excess && nanoseconds == other.nanoseconds && moves == other.moves;
    }
};

// SplitMix64 (Steele, Lea and Flood 2014).
struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    int64_t below(int64_t bound) { return static_cast<int64_t>(((next() >> 32) * static_cast<uint64_t>(bound)) >> 32); }
};

// A call of a step, or the move that it waits for, that may begin once its workers are free.
struct Ready {
    int64_t when;
    int task;
    bool operator<(const Ready& other) const { return when != other.when ? when < other.when : task < other.task; }
};

// What is read of an option for each plan, on one line of a processor's cache.
struct alignas(64) Option {
    int64_t mesh, place, spot, nanoseconds, is_released;
    int64_t most_lasting, most_passing, most_away;  // of its stages
};

class Scorer {
  public:
    explicit Scorer(const SearchTables& tables) : t(tables), calls(static_cast<int>(tables.calls)) {
        const int64_t count = t.option_start[t.calls];
        options.resize(count);
        for (int64_t o = 0; o < count; ++o) {
            const int64_t first = t.stage_start[o], last = t.stage_start[o + 1];
            options[o] = {t.mesh[o], t.place[o], t.spot[o], t.nanoseconds[o], t.is_released[o],
                          *std::max_element(t.lasting + first, t.lasting + last),
                          *std::max_element(t.passing + first, t.passing + last),
                          *std::max_element(t.away + first, t.away + last)};
            most_moving.push_back(*std::max_element(t.moving + first, t.moving + last));
        }
        const int64_t ranges = t.range_start[t.meshes];
        points.assign(t.range_first, t.range_first + ranges);
        points.insert(points.end(), t.range_last, t.range_last + ranges);
        std::sort(points.begin(), points.end());
        points.erase(std::unique(points.begin(), points.end()), points.end());
        auto point_of = [&](int64_t rank) {
            return static_cast<int>(std::lower_bound(points.begin(), points.end(), rank) - points.begin());
        };
        std::transform(t.range_first, t.range_first + ranges, std::back_inserter(first_point), point_of);
        std::transform(t.range_last, t.range_last + ranges, std::back_inserter(last_point), point_of);
        is_bound.resize(points.size() / 64 + 1);
        segment_from.resize(64 * is_bound.size());
        for (int c = 0; c < calls; ++c) {
            home[c] = static_cast<int>(t.home[c]);
            lag[c] = static_cast<int>(t.lag[c]);
        }
        std::memset(without_moves, 0, sizeof(without_moves));
        for (int s = 0; s < t.steps; ++s) {
            for (int c = 0; c < calls; ++c) {
                without_moves[s][c] += s >= t.ahead;
                without_moves[s][calls + c] += s >= t.ahead;
                later_start[s][c] = static_cast<int>(later.size());
                for (int64_t e = t.next_start[c]; e < t.next_start[c + 1]; ++e) {
                    if (s + t.next_steps[e] >= t.steps) continue;
                    ++without_moves[s + t.next_steps[e]][t.next_call[e]];
                    later.push_back(static_cast<int>((s + t.next_steps[e]) * kTasks + t.next_call[e]));
                }
                later_end[s][c] = static_cast<int>(later.size());
            }
        }
    }

    Score operator()(const int64_t* plan) {
        Score score{over(plan), 0, 0};
        time(score, kAny);
        return score;
    }

    // Bytes over the capacity, of all ranks together.
    int64_t over(const int64_t* plan) {
        for (int c = 0; c < calls; ++c) taken[c] = &options[plan[c]];
        cut();
        replicate();
        int64_t found = 0;
        for (int s = 0; s < segments; ++s) {
            if (!surely_fits(plan, s)) found += excess(plan, s);
        }
        return found;
    }

    // The rest of the same plan's score; false where it lasts longer than the limit, and nothing more is known.
    bool time(Score& score, int64_t limit) {
        score.nanoseconds = schedule(limit);
        score.moves = movers;
        return score.nanoseconds != kAny;
    }

  private:
    const SearchTables& t;
    const int calls;
    std::vector<Option> options;
    std::vector<int64_t> most_moving;  // of each option's stages
    const Option* taken[kCalls];  // the plan's

    std::vector<int64_t> points;               // where ranges of meshes begin or end, each once
    std::vector<int> first_point, last_point;  // of each range
    std::vector<uint64_t> is_bound;            // by point, whether a mesh of the plan begins or ends there
    std::vector<int> segment_from;             // by such a point, the number of the segment that begins there
    int segments = 0;
    int64_t bounds[kSegments + 1];  // where each segment begins, and the last one ends
    uint64_t masks[kCalls];
    int replica[kCalls];     // the first call of its role at its place; its home where that is there
    bool keeps[kCalls];      // whether the replica of this call stays between its calls
    int mover[kCalls];       // the call whose move brings this one its parameters; -1 of none
    int64_t moving[kCalls];  // how long that lasts
    int moved[kCalls], movers = 0;  // the calls that are their own movers
    int64_t lasts[kCalls];          // how long each call lasts where it is
    int later_start[kSteps][kCalls], later_end[kSteps][kCalls];  // where in `later` those are that wait for a call
    std::vector<int> later;
    int home[kCalls], lag[kCalls];
    int64_t rest[kSteps][kCalls];  // see look_ahead
    int without_moves[kSteps][kTasks];  // what each task waits for, but moves

    // The ranks between bounds of meshes, numbered; and which of these a call is on.
    void cut() {
        std::fill(is_bound.begin(), is_bound.end(), 0);
        for (int c = 0; c < calls; ++c) {
            const int64_t m = taken[c]->mesh;
            for (int64_t r = t.range_start[m]; r < t.range_start[m + 1]; ++r) {
                for (const int point : {first_point[r], last_point[r]}) is_bound[point / 64] |= uint64_t{1} << point % 64;
            }
        }
        int count = 0;
        for (size_t word = 0; word < is_bound.size(); ++word) {
            for (uint64_t bits = is_bound[word]; bits; bits &= bits - 1) {
                const size_t point = 64 * word + __builtin_ctzll(bits);
                bounds[count] = points[point];
                segment_from[point] = count++;
            }
        }
        segments = count - 1;
        for (int c = 0; c < calls; ++c) {
            const int64_t m = taken[c]->mesh;
            masks[c] = 0;
            for (int64_t r = t.range_start[m]; r < t.range_start[m + 1]; ++r) {
                masks[c] |= (uint64_t{1} << segment_from[last_point[r]]) - (uint64_t{1} << segment_from[first_point[r]]);
            }
        }
    }

    int64_t move_from_home(int c) const {
        return t.move_nanoseconds[t.move_start[c] + taken[home[c]]->spot * t.spots[c] + taken[c]->spot];
    }

    void replicate() {
        movers = 0;
        for (int c = 0; c < calls; ++c) {
            const int64_t place = taken[c]->place;
            replica[c] = home[c];
            mover[c] = -1;
            keeps[c] = false;
            lasts[c] = taken[c]->nanoseconds;
            if (place == taken[home[c]]->place) {
                if (lag[c] != 0) lasts[c] += move_from_home(c);
                continue;
            }
            int first = 0;
            while (t.role[first] != t.role[c] || taken[first]->place != place) ++first;
            replica[c] = first;
            if (lag[c] == 0 || first == home[c]) continue;
            while (t.role[first] != t.role[c] || taken[first]->place != place || lag[first] != lag[c]) ++first;
            mover[c] = first;
            moving[c] = move_from_home(c);
            if (first == c) moved[movers++] = c;
        }
        for (int c = 0; c < calls; ++c) keeps[replica[c]] = keeps[replica[c]] || !taken[c]->is_released;
    }

    // What passes at least from the end of each call to that of the last step that counts, were all workers free: kNever
    // where nothing of that step waits for it. Returns the same from the end of the step from which on they count.
    int64_t look_ahead() {
        const int last = static_cast<int>(t.last);
        int64_t most[kSteps], whole[kSteps * kTasks];
        for (int s = last + 1; s < t.steps; ++s) std::fill(rest[s], rest[s] + calls, kNever);
        for (int s = last; s >= 0; --s) {
            const int64_t least = s == last ? 0 : s + t.ahead <= last ? most[s + t.ahead] : kNever;
            most[s] = kNever;
            for (int c = calls - 1; c >= 0; --c) {
                int64_t found = least;
                for (int e = later_start[s][c]; e < later_end[s][c]; ++e) {
                    if (later[e] < (last + 1) * kTasks) found = std::max(found, whole[later[e]]);
                }
                for (int m = 0; m < movers; ++m) {
                    const int then = s + lag[moved[m]];
                    if (home[moved[m]] == c && then <= last) {
                        found = std::max(found, moving[moved[m]] + whole[then * kTasks + moved[m]]);
                    }
                }
                rest[s][c] = found;
                const int64_t with = lasts[c] + found;
                whole[s * kTasks + c] = with;
                most[s] = std::max(most[s], with);
            }
        }
        return t.first + t.ahead <= last ? most[t.first + t.ahead] : kNever;
    }

    // Nanoseconds from the end of the first step that counts to the end of the last: whoever is ready first begins first,
    // once all of its workers are free. kAny, if that is surely beyond the limit.
    int64_t schedule(int64_t limit) {
        const int steps = static_cast<int>(t.steps), first = static_cast<int>(t.first);
        const int ahead = static_cast<int>(t.ahead), last = static_cast<int>(t.last);
        int waits[kSteps * kTasks], left[kSteps];
        int64_t ready[kSteps * kTasks], ends[kSteps] = {}, free[kSegments];
        Ready queue[kSteps * kTasks];
        int queued = 0;
        const bool is_limited = limit != kAny;
        if (is_limited && look_ahead() > limit) return kAny;
        uint64_t on[kTasks];  // of calls and moves
        int64_t takes[kTasks];
        for (int c = 0; c < calls; ++c) {
            on[c] = masks[c];
            takes[c] = lasts[c];
            if (mover[c] != c) continue;
            on[calls + c] = masks[c] | masks[home[c]];
            takes[calls + c] = moving[c];
        }
        std::fill(free, free + segments, 0);
        std::memset(ready, 0, steps * kTasks * sizeof(ready[0]));
        std::memcpy(waits, without_moves, steps * kTasks * sizeof(waits[0]));
        std::fill(left, left + steps, calls);
        for (int c = 0; c < calls; ++c) {
            if (mover[c] < 0) continue;
            for (int s = lag[c]; s < steps; ++s) ++waits[s * kTasks + c];
            if (mover[c] != c) continue;
            for (int s = lag[c]; s < steps; ++s) {
                ++waits[s * kTasks + calls + c];
                ++left[s];
            }
        }
        for (int s = 0; s < std::min<int64_t>(t.ahead, steps); ++s) {
            for (int c = 0; c < calls; ++c) {
                if (waits[s * kTasks + c] == 0) queue[queued++] = {0, s * kTasks + c};
            }
        }
        int64_t reached = 0;  // the last step that counts does not end before
        auto come = [&](int task, int64_t when) {
            ready[task] = std::max(ready[task], when);
            if (--waits[task] == 0) queue[queued++] = {ready[task], task};
        };
        while (queued) {
            int best = 0;
            for (int i = 1; i < queued; ++i) {
                if (queue[i] < queue[best]) best = i;
            }
            const Ready next = queue[best];
            queue[best] = queue[--queued];
            const int s = next.task / (kTasks), task = next.task % (kTasks);
            const bool is_move = task >= calls;
            const int c = is_move ? task - calls : task;
            int64_t end = next.when;
            for (uint64_t bits = on[task]; bits; bits &= bits - 1) end = std::max(end, free[__builtin_ctzll(bits)]);
            end += takes[task];
            for (uint64_t bits = on[task]; bits; bits &= bits - 1) free[__builtin_ctzll(bits)] = end;
            ends[s] = std::max(ends[s], end);
            if (is_move) {
                for (int user = 0; user < calls; ++user) {
                    if (mover[user] == c) come(s * kTasks + user, end);
                }
            } else {
                if (is_limited) reached = std::max(reached, end + rest[s][c]);
                for (int e = later_start[s][c]; e < later_end[s][c]; ++e) come(later[e], end);
                for (int m = 0; m < movers; ++m) {
                    const int user = moved[m];
                    if (home[user] == c && s + lag[user] < steps) come((s + lag[user]) * kTasks + calls + user, end);
                }
            }
            if (--left[s] == 0 && s + ahead < steps) {
                const int then = s + ahead;
                for (int other = 0; other < calls; ++other) come(then * kTasks + other, ends[s]);
                for (int m = 0; m < movers; ++m) {
                    if (then >= lag[moved[m]]) come(then * kTasks + calls + moved[m], ends[s]);
                }
            }
            if (left[last] == 0 && left[first] == 0) break;
            if (is_limited && left[first] == 0 && reached - ends[first] > limit) return kAny;
        }
        return ends[last] - ends[first];
    }

    // What of a replica's model is there in its calls and moves alone, on the fullest of its stages.
    int64_t comes(int with) const { return taken[with]->most_away + (keeps[with] ? 0 : taken[with]->most_lasting); }

    // Whether a segment fits even where each of its workers had what the fullest stage has.
    bool surely_fits(const int64_t* plan, int s) const {
        int64_t stays = 0, most = 0;
        for (int c = 0; c < calls; ++c) {
            if (!(masks[c] >> s & 1)) continue;
            const int with = replica[c];
            const int64_t lasting = taken[with]->most_lasting;
            if (with == c && keeps[c]) stays += lasting;
            most = std::max(most, taken[c]->most_passing + comes(with));
        }
        for (int m = 0; m < movers; ++m) {
            int64_t both = 0;
            for (const int c : {moved[m], home[moved[m]]}) {
                if (masks[c] >> s & 1) both += most_moving[plan[c]] + comes(replica[c]);
            }
            most = std::max(most, both);
        }
        return stays + most <= t.capacity;
    }

    // Bytes that the ranks of a segment have too many. It is gone through from one stage to the next, of any call.
    int64_t excess(const int64_t* plan, int s) const {
        int here[kCalls], count = 0;
        int64_t side[kCalls] = {};  // of each call here, what a move to its place, or from it, takes
        int64_t stage[kCalls], each[kCalls], until[kCalls];  // of these calls; until which rank the stage goes
        for (int c = 0; c < calls; ++c) {
            if (!(masks[c] >> s & 1)) continue;
            int64_t size = 0, before = 0;
            for (int64_t r = t.range_start[taken[c]->mesh]; r < t.range_start[taken[c]->mesh + 1]; ++r) {
                size += t.range_last[r] - t.range_first[r];
                before += std::max<int64_t>(0, std::min(t.range_last[r], bounds[s]) - t.range_first[r]);
            }
            each[count] = size / (t.stage_start[plan[c] + 1] - t.stage_start[plan[c]]);
            stage[count] = before / each[count];
            until[count] = bounds[s] + (stage[count] + 1) * each[count] - before;
            here[count++] = c;
        }
        int64_t found = 0;
        for (int64_t rank = bounds[s]; rank < bounds[s + 1];) {
            int64_t stays = 0, most = 0, end = bounds[s + 1];
            for (int i = 0; i < count; ++i) {
                const int c = here[i], with = replica[c];
                if (until[i] == rank) {
                    ++stage[i];
                    until[i] += each[i];
                }
                end = std::min(end, until[i]);
                const int64_t lasting = t.lasting[t.stage_start[plan[with]] + stage[i]];
                const int64_t comes = t.away[t.stage_start[plan[with]] + stage[i]] + (keeps[with] ? 0 : lasting);
                if (with == c && keeps[c]) stays += lasting;
                most = std::max(most, t.passing[t.stage_start[plan[c]] + stage[i]] + comes);
                side[c] = t.moving[t.stage_start[plan[c]] + stage[i]] + comes;
            }
            for (int m = 0; m < movers; ++m) most = std::max(most, side[moved[m]] + side[home[moved[m]]]);
            found += (end - rank) * std::max<int64_t>(0, stays + most - t.capacity);
            rank = end;
        }
        return found;
    }
};

// The best plans that were seen, best first; of those with equal scores, the first by their options.
class Best {
  public:
    Best(int64_t calls, int64_t size, int64_t* plans, int64_t* scores)
        : calls(calls), size(size), plans(plans), scores(scores) {}

    // Of a plan with this excess, the most nanoseconds with which it may be among them; -1: none.
    int64_t admits(int64_t excess) const {
        if (count < size) return kAny;
        const Score worst = of(count - 1);
        return excess < worst.excess ? kAny : excess == worst.excess ? worst.nanoseconds : -1;
    }

    void see(const int64_t* plan, const Score& score) {
        int64_t at = count;
        while (at > 0 && score < of(at - 1)) --at;
        if (at > 0 && of(at - 1) == score) {
            int64_t* same = plans + (at - 1) * calls;
            if (std::lexicographical_compare(plan, plan + calls, same, same + calls)) std::copy_n(plan, calls, same);
            return;
        }
        if (at == size) return;
        if (count < size) ++count;
        for (int64_t i = count - 1; i > at; --i) {
            std::copy_n(plans + (i - 1) * calls, calls, plans + i * calls);
            std::copy_n(scores + (i - 1) * 3, 3, scores + i * 3);
        }
        std::copy_n(plan, calls, plans + at * calls);
        scores[at * 3] = score.excess;
        scores[at * 3 + 1] = score.nanoseconds;
        scores[at * 3 + 2] = score.moves;
    }

    int64_t count = 0;

  private:
    const int64_t calls, size;
    int64_t *plans, *scores;

    Score of(int64_t i) const { return {scores[i * 3], scores[i * 3 + 1], scores[i * 3 + 2]}; }
};

// One of a call's options on a mesh, or at a place, as `starts` has them; false where it has none there.
bool pick(Random& random, const int64_t* starts, int64_t width, int64_t call, int64_t which, int64_t* plan) {
    const int64_t first = starts[call * (width + 1) + which], last = starts[call * (width + 1) + which + 1];
    if (first == last) return false;
    plan[call] = first + random.below(last - first);
    return true;
}

bool propose(const SearchTables& t, Random& random, const std::vector<int64_t>& free, int64_t kind, int64_t* plan) {
    const int64_t c = free[random.below(static_cast<int64_t>(free.size()))];
    if (kind == 0) {
        plan[c] = t.option_start[c] + random.below(t.option_start[c + 1] - t.option_start[c]);
        return true;
    }
    if (kind == 1) {
        const int64_t m = t.mesh[plan[c]], count = t.near_start[m + 1] - t.near_start[m];
        if (count == 0) return false;
        return pick(random, t.on_mesh, t.meshes, c, t.near[t.near_start[m] + random.below(count)], plan);
    }
    if (kind == 4) return pick(random, t.at_place, t.places, c, t.place[plan[t.home[c]]], plan);
    if (kind == 5) return pick(random, t.at_place, t.places, c, t.place[plan[c]], plan);
    const int64_t other = random.below(t.calls);
    if (kind == 2) return pick(random, t.on_mesh, t.meshes, c, t.mesh[plan[other]], plan);
    const int64_t mine = t.place[plan[c]], theirs = t.place[plan[other]];
    return pick(random, t.at_place, t.places, c, theirs, plan) &&
           pick(random, t.at_place, t.places, other, mine, plan);
}

bool accepts(const SearchTables& t, Random& random, const Score& now, const Score& then, int64_t beta) {
    if (!(now < then)) return true;
    const int64_t more = then.excess != now.excess ? then.excess - now.excess : then.nanoseconds - now.nanoseconds;
    const int64_t of = then.excess != now.excess ? t.capacity : std::max<int64_t>(1, now.nanoseconds);
    const __int128 worse = (static_cast<__int128>(more) * beta << kShift) / of;
    return worse <= t.quantiles[random.next() >> 52];
}

// Of a plan with as much excess, the most nanoseconds with which the next random number lets it be accepted.
int64_t accepted(const SearchTables& t, Random random, const Score& now, int64_t beta) {
    const int64_t quantile = t.quantiles[random.next() >> 52], of = std::max<int64_t>(1, now.nanoseconds);
    const __int128 room = static_cast<__int128>(quantile + 1) * of - 1;  // floor(more · beta · 2^20 / of) ≤ quantile
    return now.nanoseconds + static_cast<int64_t>(room / (static_cast<__int128>(beta) << kShift));
}

}  // namespace

extern "C" {

void hpcrl_score_plans(const SearchTables* tables, const int64_t* plans, int64_t count, int64_t* scores) {
    Scorer scorer(*tables);
    for (int64_t i = 0; i < count; ++i) {
        const Score score = scorer(plans + i * tables->calls);
        scores[i * 3] = score.excess;
        scores[i * 3 + 1] = score.nanoseconds;
        scores[i * 3 + 2] = score.moves;
    }
}

// Returns how many of the best plans there are. A trace has a row of each proposal: its kind, or -1 where it proposed
// nothing; what the plan is worth that the chain has after it.
int64_t hpcrl_search_chain(const SearchTables* tables, const int64_t* start, uint64_t seed, int64_t proposals,
                           int64_t hot, int64_t cold, int64_t size, int64_t* plans, int64_t* scores, int64_t* trace) {
    const SearchTables& t = *tables;
    Scorer scorer(t);
    Random random{seed};
    Best best(t.calls, size, plans, scores);
    std::vector<int64_t> now(start, start + t.calls), then(now), free;
    for (int64_t c = 0; c < t.calls; ++c) {
        if (t.option_start[c + 1] - t.option_start[c] > 1) free.push_back(c);
    }
    Score score = scorer(now.data());
    best.see(now.data(), score);
    for (int64_t i = 0; i < proposals && !free.empty(); ++i) {
        const int64_t kind = t.kinds[random.below(kKinds)];
        then = now;
        const bool has = propose(t, random, free, kind, then.data()) && then != now;
        if (has) {
            const int64_t beta = hot + (cold - hot) * i / proposals;
            Score other{scorer.over(then.data()), 0, 0};
            const bool is_over = other.excess > score.excess;  // then that decides, however long it takes
            bool is_accepted = is_over && accepts(t, random, score, other, beta);
            int64_t limit = best.admits(other.excess);
            if (is_accepted || other.excess < score.excess) limit = kAny;
            if (other.excess == score.excess) limit = std::max(limit, accepted(t, random, score, beta));
            const bool is_timed = limit >= 0 && scorer.time(other, limit);
            if (is_timed) best.see(then.data(), other);
            if (!is_over && is_timed) is_accepted = accepts(t, random, score, other, beta);
            if (!is_over && !is_timed) random.next();  // what is longer than the limit is worse, and not accepted
            if (is_accepted) {
                now = then;
                score = other;
            }
        }
        if (trace) {
            trace[i * 4] = has ? kind : -1;
            trace[i * 4 + 1] = score.excess;
            trace[i * 4 + 2] = score.nanoseconds;
            trace[i * 4 + 3] = score.moves;
        }
    }
    return best.count;
}

// Scores every plan there is.
int64_t hpcrl_search_all(const SearchTables* tables, int64_t size, int64_t* plans, int64_t* scores) {
    const SearchTables& t = *tables;
    Scorer scorer(t);
    Best best(t.calls, size, plans, scores);
    std::vector<int64_t> plan(t.option_start, t.option_start + t.calls);
    for (;;) {
        best.see(plan.data(), scorer(plan.data()));
        int64_t c = t.calls - 1;
        while (c >= 0 && ++plan[c] == t.option_start[c + 1]) {
            plan[c] = t.option_start[c];
            --c;
        }
        if (c < 0) return best.count;
    }
}
}

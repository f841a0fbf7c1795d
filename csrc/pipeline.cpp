// How long a pipeline lasts whose stages take each micro-batch a known time.
//
// hpcrl/placement/pipeline_time.py plays the same orders in Python, with the same sums in the same order, so that no bit
// depends on whether this was compiled; hpcrl/data/pipeline_order.py has the orders that workers follow.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kNone = -1;
constexpr double kNotYet = -1.0;

// A pass of a micro-batch, or what two neighbours send each other at once.
struct Step {
    bool is_exchange;
    int64_t pair;              // of an exchange, the first of both; of a pass, 1 if backward
    int64_t forward, backward; // micro-batches; of a pass, the first
};

// Both sides have a pair's exchanges in one order, so each is known by its number.
struct Exchange {
    double begun = kNotYet;  // by the first of both
    double over = kNotYet;
};

struct Stage {
    std::vector<Step> order;
    size_t at = 0;
    double now = 0.0;
    std::vector<int64_t> number = {0, 0};  // of the next exchange with the stage before, and with the one after
    bool has_begun = false;                // the exchange that it is at
    Exchange* on_the_way = nullptr;        // what was only sent
};

std::vector<Step> inference_order(int64_t stage, int64_t stages, int64_t count) {
    std::vector<Step> found;
    for (int64_t i = 0; i < count; ++i) {
        if (stage > 0) found.push_back({true, stage - 1, i, kNone});
        found.push_back({false, 0, i, kNone});
        if (stage < stages - 1) found.push_back({true, stage, i, kNone});
    }
    return found;
}

std::vector<Step> training_order(int64_t stage, int64_t stages, int64_t count) {
    std::vector<Step> found;
    const int64_t ahead = std::min(stages - 1 - stage, count);
    const bool first = stage == 0, last = stage == stages - 1;
    for (int64_t i = 0; i < ahead; ++i) {
        if (!first) found.push_back({true, stage - 1, i, kNone});
        found.push_back({false, 0, i, kNone});
        found.push_back({true, stage, i, kNone});
    }
    if (ahead < count && !first) found.push_back({true, stage - 1, ahead, kNone});
    for (int64_t i = 0; i < count; ++i) {
        const int64_t entering = ahead + i < count ? ahead + i : kNone;
        if (entering != kNone) found.push_back({false, 0, entering, kNone});
        if (!last) found.push_back({true, stage, entering, i});
        found.push_back({false, 1, i, kNone});
        if (!first) found.push_back({true, stage - 1, ahead + i + 1 < count ? ahead + i + 1 : kNone, i});
    }
    return found;
}

struct Play {
    const double *forward, *backward, *sent;
    int64_t count;
    std::vector<std::vector<Exchange>> exchanges;  // by pair

    // Begins an exchange; whether the stage may go on.
    bool passed(Stage& stage, int64_t number, const Step& step) {
        const bool is_lower = step.pair == number;
        const bool there = step.forward != kNone, back = step.backward != kNone;
        const bool sends = is_lower ? there : back, receives = is_lower ? back : there;
        Exchange& exchange = exchanges[step.pair][stage.number[is_lower]];
        if (!stage.has_begun) {
            if (sends && stage.on_the_way != nullptr) {
                if (stage.on_the_way->over == kNotYet) return false;
                stage.now = std::max(stage.now, stage.on_the_way->over);
                stage.on_the_way = nullptr;
            }
            stage.has_begun = true;
            if (exchange.begun == kNotYet) {
                exchange.begun = stage.now;
            } else {
                double moved = there ? sent[step.forward] : 0.0;
                if (back) moved = std::max(moved, sent[step.backward]);
                exchange.over = std::max(exchange.begun, stage.now) + moved;
            }
        }
        if (receives) {
            if (exchange.over == kNotYet) return false;
            stage.now = std::max(stage.now, exchange.over);
        } else if (sends) {
            stage.on_the_way = &exchange;
        }
        stage.has_begun = false;
        ++stage.number[is_lower];
        return true;
    }

    // Goes on as far as others have come; whether that is to the end.
    bool went_through(Stage& stage, int64_t number) {
        for (; stage.at < stage.order.size(); ++stage.at) {
            const Step& step = stage.order[stage.at];
            if (step.is_exchange) {
                if (!passed(stage, number, step)) return false;
            } else {
                stage.now += (step.pair ? backward : forward)[number * count + step.forward];
            }
        }
        if (stage.on_the_way != nullptr) {
            if (stage.on_the_way->over == kNotYet) return false;
            stage.now = std::max(stage.now, stage.on_the_way->over);
            stage.on_the_way = nullptr;
        }
        return true;
    }
};

}  // namespace

// double [stages, count] and [count]; `backward` is null where nothing is trained.
extern "C" double hpcrl_pipeline(const double* forward, const double* backward, const double* sent, int64_t stages,
                                 int64_t count) {
    Play play{forward, backward, sent, count, {}};
    play.exchanges.resize(stages - 1);
    for (auto& of_pair : play.exchanges) of_pair.resize(2 * count + 1);
    std::vector<Stage> all(stages);
    for (int64_t i = 0; i < stages; ++i) {
        all[i].order = backward == nullptr ? inference_order(i, stages, count) : training_order(i, stages, count);
    }
    // Each round some stage comes further, as the orders fit each other.
    for (int64_t left = stages; left > 0;) {
        left = 0;
        for (int64_t i = 0; i < stages; ++i) left += !play.went_through(all[i], i);
    }
    double longest = 0.0;
    for (const Stage& stage : all) longest = std::max(longest, stage.now);
    return longest;
}

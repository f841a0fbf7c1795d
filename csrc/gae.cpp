// Generalised advantage estimation over packed sequences: one loop from the last token of each sequence to its first.
//
// A_t = d_t + decay * A_{t+1},  d_t = (r_t + discount * V_{t+1}) - V_t,  R_t = A_t + V_t  (Schulman et al. 2016, eq. 16)
//
// hpcrl/ops/gae.py has the same operations in the same order in numpy, so that no bit depends on whether this was
// compiled: compile it without contraction of a product and a sum into one operation (-ffp-contract=off).

#include <cstdint>

namespace {

// A sum waits for the one before it, so several sequences go side by side.
constexpr int kLanes = 4;

struct Lane {
    int64_t at;    // the next token to be computed, from the end; -1 below the first one
    int64_t first; // of its sequence
    double value;  // V_{t+1}
    double sum;    // A_{t+1}
};

}  // namespace

extern "C" void hpcrl_gae(const double* rewards, const double* values, const int64_t* bounds, int64_t sequences,
                          double discount, double decay, double* advantages, double* returns) {
    Lane lanes[kLanes];
    int64_t next = 0;
    auto refill = [&](Lane& lane) {
        while (next < sequences && bounds[next] == bounds[next + 1]) ++next;
        if (next == sequences) return false;
        lane = {bounds[next + 1] - 1, bounds[next], 0.0, 0.0};
        ++next;
        return true;
    };
    auto step = [&](Lane& lane) {
        const int64_t t = lane.at--;
        const double value = values[t];
        const double delta = (rewards[t] + discount * lane.value) - value;
        lane.sum = delta + decay * lane.sum;
        lane.value = value;
        advantages[t] = lane.sum;
        returns[t] = lane.sum + value;
    };
    int active = 0;
    while (active < kLanes && refill(lanes[active])) ++active;
    while (active == kLanes) {
        int64_t run = lanes[0].at - lanes[0].first;
        for (int i = 1; i < kLanes; ++i) {
            const int64_t left = lanes[i].at - lanes[i].first;
            if (left < run) run = left;
        }
        Lane a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
        static_assert(kLanes == 4, "each lane has its own registers");
        for (int64_t k = 0; k <= run; ++k) {
            step(a);
            step(b);
            step(c);
            step(d);
        }
        lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
        for (int i = 0; i < active;) {
            if (lanes[i].at >= lanes[i].first || refill(lanes[i])) {
                ++i;
            } else {
                lanes[i] = lanes[--active];
            }
        }
    }
    for (int i = 0; i < active; ++i) {
        while (lanes[i].at >= lanes[i].first) step(lanes[i]);
    }
}

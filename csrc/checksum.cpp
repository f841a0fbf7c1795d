// Sums of bit patterns, each weighed by where its element is in its parameter: see hpcrl/engines/checksum.py, which has
// the same in torch. All arithmetic is modulo 2^64, so that its order does not matter.

#include <algorithm>
#include <cstdint>

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kPieceBytes = 1 << 18;  // enough work for a thread to be worth a turn

// sum b_k * (first + 2 k) of a run. Adding up the sums so far multiplies by how many are still to come: no product is
// needed but at the end.
template <typename T>
uint64_t of_run(const T* bits, int64_t run, uint64_t first) {
    uint64_t sums[kLanes] = {}, sums_of_sums[kLanes] = {};
    const int64_t whole = run / kLanes;
    for (int64_t j = 0; j < whole; ++j) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            sums[lane] += static_cast<uint64_t>(static_cast<int64_t>(bits[j * kLanes + lane]));
            sums_of_sums[lane] += sums[lane];
        }
    }
    uint64_t total = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
        const uint64_t by_row = whole * sums[lane] - sums_of_sums[lane];  // sum b * j
        total += (first + 2 * lane) * sums[lane] + 2 * kLanes * by_row;
    }
    for (int64_t k = whole * kLanes; k < run; ++k) {
        total += (first + 2 * k) * static_cast<uint64_t>(static_cast<int64_t>(bits[k]));
    }
    return total;
}

template <typename T>
uint64_t of_all(const T* bits, const int64_t* offsets, const int64_t* steps, const int64_t* rows, const int64_t* runs,
                const uint64_t* weights, const uint64_t* weight_steps, int64_t count) {
    uint64_t total = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t piece = std::max<int64_t>(1, std::min(runs[i], kPieceBytes / static_cast<int64_t>(sizeof(T))));
        const int64_t pieces = (runs[i] + piece - 1) / piece;
#pragma omp parallel for reduction(+ : total) schedule(static) if (rows[i] * runs[i] > piece)
        for (int64_t part = 0; part < rows[i] * pieces; ++part) {
            const int64_t row = part / pieces, begin = part % pieces * piece;
            total += of_run(bits + offsets[i] + row * steps[i] + begin, std::min(piece, runs[i] - begin),
                            weights[i] + row * weight_steps[i] + 2 * begin);
        }
    }
    return total;
}

}  // namespace

extern "C" uint64_t hpcrl_checksum(const void* bits, const int64_t* offsets, const int64_t* steps, const int64_t* rows,
                                   const int64_t* runs, const uint64_t* weights, const uint64_t* weight_steps,
                                   int64_t count, int64_t itemsize) {
    auto of = [&](auto element) {
        using T = decltype(element);
        return of_all(static_cast<const T*>(bits), offsets, steps, rows, runs, weights, weight_steps, count);
    };
    switch (itemsize) {
        case 2: return of(int16_t{});
        case 4: return of(int32_t{});
        default: return of(int64_t{});
    }
}

// A matrix as files store it: rounded and turned in one pass. hpcrl/families/tensors.py has the same in numpy.

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

inline uint16_t as_bf16(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

// Columns first … last of some rows. Column c of the source becomes row order[c] of the target, whose rows have `rows`
// elements.
template <typename From, typename To, typename Convert>
void turn(const From* source, int64_t step, int64_t begin, int64_t end, int64_t first, int64_t last,
          const int64_t* order, To* target, int64_t rows, Convert convert) {
    constexpr int64_t kTile = 16;  // of both: the lines that it touches stay in the nearest cache
    for (int64_t r = begin; r < end; r += kTile) {
        for (int64_t c = first; c < last; c += kTile) {
            for (int64_t column = c; column < std::min(c + kTile, last); ++column) {
                To* to = target + order[column] * rows;
                for (int64_t k = r; k < std::min(r + kTile, end); ++k) to[k] = convert(source[k * step + column]);
            }
        }
    }
}

#ifdef __x86_64__
bool has_avx2() {
    static const bool found = __builtin_cpu_supports("avx2");
    return found;
}

constexpr int64_t kLanes = 8;

__attribute__((target("avx2"))) inline __m256 bf16_lanes(__m256 numbers) {
    const __m256i bits = _mm256_castps_si256(numbers);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sums = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256 rounded = _mm256_castsi256_ps(_mm256_srli_epi32(sums, 16));
    const __m256 none = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc0));
    return _mm256_blendv_ps(rounded, none, _mm256_cmp_ps(numbers, numbers, _CMP_UNORD_Q));
}

__attribute__((target("avx2"))) inline __m256 load_lanes(const uint32_t* from) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
}

__attribute__((target("avx2"))) inline __m256 load_lanes(const float* from) { return bf16_lanes(_mm256_loadu_ps(from)); }

__attribute__((target("avx2"))) inline __m256 load_lanes(const uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

// 8 × 8 numbers: row k of what is loaded becomes lane k of each column.
template <typename From>
__attribute__((target("avx2"))) inline void turn_lanes(const From* source, int64_t step, __m256 (&columns)[kLanes]) {
    __m256 rows[kLanes], pairs[kLanes], fours[kLanes];
    for (int k = 0; k < kLanes; ++k) rows[k] = load_lanes(source + k * step);
    for (int k = 0; k < kLanes; k += 2) {
        pairs[k] = _mm256_unpacklo_ps(rows[k], rows[k + 1]);
        pairs[k + 1] = _mm256_unpackhi_ps(rows[k], rows[k + 1]);
    }
    for (int k = 0; k < kLanes; k += 4) {
        fours[k] = _mm256_shuffle_ps(pairs[k], pairs[k + 2], 0x44);
        fours[k + 1] = _mm256_shuffle_ps(pairs[k], pairs[k + 2], 0xee);
        fours[k + 2] = _mm256_shuffle_ps(pairs[k + 1], pairs[k + 3], 0x44);
        fours[k + 3] = _mm256_shuffle_ps(pairs[k + 1], pairs[k + 3], 0xee);
    }
    for (int k = 0; k < 4; ++k) {
        columns[k] = _mm256_permute2f128_ps(fours[k], fours[k + 4], 0x20);
        columns[k + 4] = _mm256_permute2f128_ps(fours[k], fours[k + 4], 0x31);
    }
}

__attribute__((target("avx2"))) inline void store_lanes(const __m256& low, const __m256& high, uint32_t* to) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to), low);
    _mm256_storeu_ps(reinterpret_cast<float*>(to) + kLanes, high);
}

__attribute__((target("avx2"))) inline void store_lanes(const __m256& low, const __m256& high, uint16_t* to) {
    const __m256i mixed = _mm256_packus_epi32(_mm256_castps_si256(low), _mm256_castps_si256(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(mixed, 0xd8));
}

// Whole tiles of 16 rows and 8 columns.
template <typename From, typename To>
__attribute__((target("avx2"))) void turn_tiles(const From* source, int64_t step, int64_t end, int64_t last,
                                                const int64_t* order, To* target, int64_t rows) {
    for (int64_t r = 0; r < end; r += 2 * kLanes) {
        for (int64_t c = 0; c < last; c += kLanes) {
            __m256 low[kLanes], high[kLanes];
            turn_lanes(source + r * step + c, step, low);
            turn_lanes(source + (r + kLanes) * step + c, step, high);
            for (int k = 0; k < kLanes; ++k) store_lanes(low[k], high[k], target + order[c + k] * rows + r);
        }
    }
}
#endif

template <typename From, typename To, typename Convert>
void turn_all(const From* source, int64_t step, int64_t rows, int64_t columns, const int64_t* order, To* target,
              Convert convert) {
    int64_t end = 0, last = 0;
#ifdef __x86_64__
    if (has_avx2()) {
        end = rows / (2 * kLanes) * (2 * kLanes);
        last = columns / kLanes * kLanes;
        turn_tiles(source, step, end, last, order, target, rows);
    }
#endif
    turn(source, step, 0, end, last, columns, order, target, rows, convert);
    turn(source, step, end, rows, 0, columns, order, target, rows, convert);
}

}  // namespace

// A matrix of elements of 2, 4 or 8 bytes, whose rows begin `step` apart; `to_bf16` of floats, of which bf16's bits are
// stored.
extern "C" int hpcrl_turn(const void* source, int64_t step, int64_t rows, int64_t columns, const int64_t* order,
                          void* target, int64_t itemsize, int64_t to_bf16) {
    auto as_it_is = [](auto number) { return number; };
    auto turn_bits = [&](auto element) {
        using T = decltype(element);
        turn_all(static_cast<const T*>(source), step, rows, columns, order, static_cast<T*>(target), as_it_is);
        return 0;
    };
    if (to_bf16) {
        turn_all(static_cast<const float*>(source), step, rows, columns, order, static_cast<uint16_t*>(target), as_bf16);
        return 0;
    }
    switch (itemsize) {
        case 2: return turn_bits(uint16_t{});
        case 4: return turn_bits(uint32_t{});
        case 8:
            turn(static_cast<const uint64_t*>(source), step, 0, rows, 0, columns, order, static_cast<uint64_t*>(target),
                 rows, as_it_is);
            return 0;
        default: return 1;
    }
}

extern "C" void hpcrl_round_bf16(const float* numbers, uint16_t* bits, int64_t count) {
    for (int64_t k = 0; k < count; ++k) bits[k] = as_bf16(numbers[k]);
}

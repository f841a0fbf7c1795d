// Rectangles of one buffer to rectangles of another: gather, scatter and local copies of a move are this one loop.
//
// Rectangle i is rows[i] runs of runs[i] elements. Its run r begins at element from[i] + r * from_steps[i] of the source
// and at to[i] + r * to_steps[i] of the target. hpcrl/ops/rectangles.py has the same in numpy and checks all bounds.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

using Byte = unsigned char;

constexpr int64_t kTaskBytes = 1 << 18;      // enough work for a thread to be worth a turn
constexpr int64_t kUncachedBytes = 1 << 23;  // who copies so much finds none of it in a cache afterwards
constexpr int64_t kLanes = 8;                // runs that are copied side by side: memory answers several at a time,
                                             // and what the hardware fetches ahead ends where a run does
constexpr int64_t kBlockBytes = 256;         // of each lane at a time
constexpr int64_t kLineBytes = 64;           // a streamed store of part of a line costs as much as one of all of it
constexpr int64_t kSliceBytes = 1 << 12;     // a long run is cut into such rows, to have lanes too

// Some rows of a rectangle, in bytes.
struct Task {
    const Byte* from;
    int64_t from_step;
    Byte* to;
    int64_t to_step;
    int64_t rows, run;
    bool uncached;
};

#ifdef __x86_64__
bool has_avx2() {
    static const bool found = __builtin_cpu_supports("avx2");
    return found;
}

__attribute__((target("avx2"))) inline void stream_lines(const Byte* from, Byte* to, int64_t bytes) {
    for (int64_t k = 0; k < bytes; k += 32) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + k),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + k)));
    }
}

// The bytes begin … end, whole lines, of the first rows. Returns how many rows: each lane has an equal share of them.
__attribute__((target("avx2"))) int64_t stream_lanes(const Task& task, int64_t begin, int64_t end) {
    const int64_t share = task.rows / kLanes, rows = kLanes * share;
    const int64_t blocks = begin + (end - begin) / kBlockBytes * kBlockBytes;
    for (int64_t r = 0; r < share; ++r) {
        for (int64_t k = begin; k < blocks; k += kBlockBytes) {
            for (int64_t row = r; row < rows; row += share) {
                stream_lines(task.from + row * task.from_step + k, task.to + row * task.to_step + k, kBlockBytes);
            }
        }
        for (int64_t row = r; row < rows; row += share) {
            stream_lines(task.from + row * task.from_step + blocks, task.to + row * task.to_step + blocks, end - blocks);
        }
    }
    return rows;
}
#endif

void copy_task(const Task& task) {
    int64_t begin = 0, end = 0, streamed = 0;
#ifdef __x86_64__
    if (task.uncached && task.to_step % kLineBytes == 0 && has_avx2()) {
        const int64_t before_line = -reinterpret_cast<uintptr_t>(task.to) % kLineBytes;
        begin = std::min(before_line, task.run);
        end = begin + (task.run - begin) / kLineBytes * kLineBytes;
        streamed = stream_lanes(task, begin, end);
    }
#endif
    for (int64_t r = 0; r < task.rows; ++r) {
        const Byte* from = task.from + r * task.from_step;
        Byte* to = task.to + r * task.to_step;
        if (r >= streamed) {
            std::memcpy(to, from, task.run);
        } else {
            if (begin > 0) std::memcpy(to, from, begin);
            if (end < task.run) std::memcpy(to + end, from + end, task.run - end);
        }
    }
}

// A call of memcpy costs more than what it copies of a short run.
template <typename T>
void copy_short(const Task& task) {
    const int64_t run = task.run / sizeof(T), from_step = task.from_step / sizeof(T), to_step = task.to_step / sizeof(T);
    const T* from = reinterpret_cast<const T*>(task.from);
    T* to = reinterpret_cast<T*>(task.to);
    for (int64_t r = 0; r < task.rows; ++r) {
        for (int64_t k = 0; k < run; ++k) to[r * to_step + k] = from[r * from_step + k];
    }
}

void cut(const Task& whole, std::vector<Task>& tasks) {
    if (whole.uncached && whole.rows < kLanes && whole.run >= kLanes * kSliceBytes) {
        for (int64_t r = 0; r < whole.rows; ++r) {
            const Byte* from = whole.from + r * whole.from_step;
            Byte* to = whole.to + r * whole.to_step;
            const int64_t slices = whole.run / kSliceBytes, rest = whole.run % kSliceBytes;
            cut({from, kSliceBytes, to, kSliceBytes, slices, kSliceBytes, whole.uncached}, tasks);
            if (rest) {
                const int64_t end = whole.run - rest;
                tasks.push_back({from + end, rest, to + end, rest, 1, rest, whole.uncached});
            }
        }
        return;
    }
    const int64_t step = std::max(kLanes, kTaskBytes / std::max<int64_t>(1, whole.run));
    for (int64_t first = 0; first < whole.rows; first += step) {
        tasks.push_back({whole.from + first * whole.from_step, whole.from_step, whole.to + first * whole.to_step,
                         whole.to_step, std::min(step, whole.rows - first), whole.run, whole.uncached});
    }
}

template <typename T>
void copy_all(const T* source, const int64_t* from, const int64_t* from_steps, T* target, const int64_t* to,
              const int64_t* to_steps, const int64_t* rows, const int64_t* runs, int64_t count) {
    constexpr int64_t size = sizeof(T);
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; ++i) bytes += rows[i] * runs[i] * size;
    std::vector<Task> tasks;
    for (int64_t i = 0; i < count; ++i) {
        // Whoever scatters fills a part of a buffer that is much larger; what is gathered is read next.
        const bool scatters = rows[i] > 1 && to_steps[i] > runs[i];
        cut({reinterpret_cast<const Byte*>(source + from[i]), from_steps[i] * size,
             reinterpret_cast<Byte*>(target + to[i]), to_steps[i] * size, rows[i], runs[i] * size,
             scatters || bytes >= kUncachedBytes},
            tasks);
    }
    const int64_t total = static_cast<int64_t>(tasks.size());
#pragma omp parallel if (total > 1)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < total; ++t) {
            if (tasks[t].run < 64) {
                copy_short<T>(tasks[t]);
            } else {
                copy_task(tasks[t]);
            }
        }
#ifdef __x86_64__
        _mm_sfence();  // each thread's own streamed stores
#endif
    }
}

}  // namespace

extern "C" int hpcrl_copy_rectangles(const void* source, const int64_t* from, const int64_t* from_steps, void* target,
                                     const int64_t* to, const int64_t* to_steps, const int64_t* rows,
                                     const int64_t* runs, int64_t count, int64_t itemsize) {
    auto copy = [&](auto element) {
        using T = decltype(element);
        copy_all(static_cast<const T*>(source), from, from_steps, static_cast<T*>(target), to, to_steps, rows, runs,
                 count);
        return 0;
    };
    switch (itemsize) {
        case 1: return copy(uint8_t{});
        case 2: return copy(uint16_t{});
        case 4: return copy(uint32_t{});
        case 8: return copy(uint64_t{});
        default: return 1;
    }
}

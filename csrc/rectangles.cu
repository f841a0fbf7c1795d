// The same as rectangles.cpp between two buffers of one device, in the order of a stream. Nothing waits here.
//
// The seven columns lie one after another on the device, `count` entries each: from, from_steps, to, to_steps, rows,
// runs, and the prefix sums of rows * runs before each rectangle. A block copies kBlockElements elements at a time.

#include <cstdint>

#include <cuda_runtime.h>

#ifndef LAUNCH  // a test runs the kernel without a device: it has another one
#define LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
#endif

namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockElements = 8192;

// The last rectangle that begins at or before an element.
__device__ int64_t rectangle_of(const int64_t* before, int64_t count, int64_t element) {
    int64_t low = 0, high = count - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (before[middle] <= element) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

// Devices divide numbers of 64 bits several times slower.
__device__ int64_t quotient(int64_t number, int64_t by) {
    if ((number | by) >> 32) return number / by;
    return static_cast<uint32_t>(number) / static_cast<uint32_t>(by);
}

template <typename T>
__global__ void copy_rectangles(const T* __restrict__ source, T* __restrict__ target,
                                const int64_t* __restrict__ columns, int64_t count, int64_t total) {
    const int64_t *from = columns, *from_steps = from + count, *to = from_steps + count, *to_steps = to + count,
                  *runs = to_steps + 2 * count, *before = runs + count;
    for (int64_t begin = blockIdx.x * kBlockElements; begin < total; begin += gridDim.x * kBlockElements) {
        const int64_t end = begin + kBlockElements < total ? begin + kBlockElements : total;
        int64_t i = rectangle_of(before, count, begin + threadIdx.x < end ? begin + threadIdx.x : begin);
        for (int64_t element = begin + threadIdx.x; element < end; element += kThreads) {
            while (i + 1 < count && before[i + 1] <= element) ++i;
            const int64_t within = element - before[i], row = quotient(within, runs[i]), k = within - row * runs[i];
            target[to[i] + row * to_steps[i] + k] = source[from[i] + row * from_steps[i] + k];
        }
    }
}

template <typename T>
int launch(const void* source, void* target, const int64_t* columns, int64_t count, int64_t total, void* stream) {
    if (total == 0) return 0;
    const int64_t wanted = (total + kBlockElements - 1) / kBlockElements;
    const int blocks = static_cast<int>(wanted < 65535 ? wanted : 65535);
    LAUNCH(copy_rectangles<T>, blocks, kThreads, static_cast<cudaStream_t>(stream), static_cast<const T*>(source),
           static_cast<T*>(target), columns, count, total);
    return static_cast<int>(cudaGetLastError());
}

}  // namespace

// 0, or CUDA's error; -1 where elements have no such size.
extern "C" int hpcrl_copy_rectangles_cuda(const void* source, void* target, const int64_t* columns, int64_t count,
                                          int64_t total, int64_t itemsize, void* stream) {
    switch (itemsize) {
        case 1: return launch<uint8_t>(source, target, columns, count, total, stream);
        case 2: return launch<uint16_t>(source, target, columns, count, total, stream);
        case 4: return launch<uint32_t>(source, target, columns, count, total, stream);
        case 8: return launch<uint64_t>(source, target, columns, count, total, stream);
        default: return -1;
    }
}

// What csrc/*.cu needs of CUDA to be compiled as C++: all threads of a launch one after another, on the host.
#pragma once

#define __global__
#define __device__

struct Index {
    unsigned x;
};
static Index blockIdx, threadIdx, gridDim;

using cudaStream_t = void*;
inline int cudaGetLastError() { return 0; }

#define LAUNCH(kernel, blocks, threads, stream, ...)                                 \
    do {                                                                             \
        (void)stream;                                                                \
        gridDim.x = blocks;                                                          \
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {                 \
            for (threadIdx.x = 0; threadIdx.x < unsigned(threads); ++threadIdx.x) {  \
                kernel(__VA_ARGS__);                                                 \
            }                                                                        \
        }                                                                            \
    } while (0)

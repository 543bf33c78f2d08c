// The engine of gpu_check, and what keeps a GPU busy. Compiled by NVRTC where that is installed;
// kernels.ptx beside is the same for machines without it (see kernels.py).

typedef unsigned long long u64;
typedef long long i64;

__device__ static u64 now_ns()
{
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// y = 2x + 1, and at least `busy_ns` long. `stamps`: how many executions there were, then the
// beginning and the end of each, in a ring of `stamps_max`.
extern "C" __global__ void affine(const float *x, float *y, i64 count, u64 busy_ns, u64 *stamps, u64 stamps_max)
{
    u64 begin = now_ns();
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x)
        y[i] = 2.0f * x[i] + 1.0f;
    while (now_ns() - begin < busy_ns) {
    }
    if (stamps && blockIdx.x == 0 && threadIdx.x == 0) {
        u64 place = atomicAdd(stamps, 1ull) % stamps_max;
        stamps[1 + 2 * place] = begin;
        stamps[2 + 2 * place] = now_ns();
    }
}

// Ends the context of this process with an error.
extern "C" __global__ void trap_now()
{
    asm volatile("trap;");
}

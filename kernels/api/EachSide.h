// Marks functions that the kernels of all backends share.
#pragma once

#ifdef __CUDACC__
#define SHARDC_EACH_SIDE __host__ __device__
#else
#define SHARDC_EACH_SIDE
#endif

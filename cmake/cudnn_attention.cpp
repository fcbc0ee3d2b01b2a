// The only source file of attention through cuDNN; octavo_add_cudnn compiles it into octavo::cudnn.
#include <octavo/attention/cuda/cudnn_attention_impl.cuh>

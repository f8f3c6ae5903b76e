// cupti_callbacks.h includes CUDA's builtin_types.h, which needs headers of nvcc's package, 40 MB for CUDA 12. Nothing
// that the recorder reads is declared there, so this empty file stands before it on the include path.

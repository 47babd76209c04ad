//! What an array is: dtypes, shapes, aligned buffers, memory maps, safetensors and GGUF; no arithmetic.

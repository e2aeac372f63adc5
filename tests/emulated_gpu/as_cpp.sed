# What of CUDA C++ no header can turn into C++: launches (one a line), and shared memory of a launch's size.
s/^( *)(.*[^ <])<<<(.*)>>>\((.*)\);$/\1::computron::emulated_gpu::launch(\3, \&\2, \4);/
s/extern __shared__ .* (unsigned char) ([a-z]+)\[\];/\1* \2 = ::computron::emulated_gpu::dynamic_shared();/

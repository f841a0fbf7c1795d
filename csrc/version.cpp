// What Python asks first: whether this library has the functions that it knows, with their parameters.
//
// hpcrl/ops/library.py has the same number. Raise both whenever a function's name, parameters or meaning change: a
// library that an older tree built would read other parameters than it is given.

#include <cstdint>

extern "C" int64_t hpcrl_version() { return 4; }

// The program `computron`.
#include "src/apps/program.h"

int main(int argc, char** argv) { return computron::run_program(argc, argv); }

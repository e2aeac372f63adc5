// A program only for the headers that are compiled with it (tests/CMakeLists.txt).
int main() { return 0; }

// Takes the place of libc's dlclose in programs under AddressSanitizer (sanitizers.cmake): unloads nothing.
int dlclose(void* handle) {
  (void)handle;
  return 0;
}

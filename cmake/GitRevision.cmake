# cmake -DSOURCE=DIR -DGIVEN=COMMIT -DOUTPUT=FILE.h -P GitRevision.cmake: which commit is being built, at every build; the
# file is touched only when that changes. GIVEN, if not empty, is it; else git is asked.
cmake_minimum_required(VERSION 3.25)
set(revision "${GIVEN}")
if(NOT revision)
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT revision)
  set(revision "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define COMPUTRON_REVISION \"@revision@\"\n" @ONLY)

# Sets OUT to whether code for architecture 9.0a is compiled beside that for the architectures of LIST, values of
# CMAKE_CUDA_ARCHITECTURES: where 9.0 is among them, or may be ("native" is whatever GPU the building machine has; where
# that is another one, the code is compiled and never run).
function(computron_compiles_warpgroups OUT LIST)
  set(${OUT} FALSE PARENT_SCOPE)
  if(LIST MATCHES "90|all|native")
    set(${OUT} TRUE PARENT_SCOPE)
  endif()
endfunction()

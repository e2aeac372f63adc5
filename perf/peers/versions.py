#!/usr/bin/env python3
"""The versions of the other engines, and what llama.cpp was compiled for."""

from importlib.metadata import version

import llama_cpp

features = llama_cpp.llama_print_system_info().decode()
used = [part.split("=")[0].strip().split(" : ")[-1] for part in features.split("|") if part.strip().endswith("= 1")]
print(f"CTranslate2 {version('ctranslate2')}; llama.cpp of llama-cpp-python {version('llama-cpp-python')} "
      f"({', '.join(used)}); transformers {version('transformers')} on torch {version('torch')}")  # fmt: skip

#!/usr/bin/env python3
"""The Spack recipe and the Apptainer definition fit what they build, where neither tool can be had.

  packages_test.py SOURCE

The recipe runs against a stand-in of Spack's package API v2 (spack.package, and CMakePackage and CudaPackage of the builtin
repository, to their documents), which takes only what that takes: names, arguments, specs, variants that exist. What it
depends on is what CMake looks for, with the same least versions. The definition's sections, arguments and stages are whole,
and it copies every folder that a build reads. Ends with 1, naming each thing that is wrong.
"""
import importlib.util
import pathlib
import re
import sys
import types

wrong = []


def expect(right, text):
    if not right:
        wrong.append(text)


# --- Spack ------------------------------------------------------------------------------------------------------------

VERSIONS = r"@=?[\w.:,-]+"
VARIANTS = r"[+~]\s?[\w-]+|[\w-]+==?[\w.,:-]+"
SPEC = re.compile(rf"^(?P<name>[a-z][\w-]*)?(?P<versions>{VERSIONS})?(?P<variants>(\s*({VARIANTS}))*)(\s*%[\w-]+({VERSIONS})?)?$")
TARGETS = ("x86_64", "aarch64", "ppc64le")


class Recorder:
    """The directives: each takes its arguments by the names that Spack gives them, and nothing else."""

    def __init__(self):
        self.dependencies, self.variants, self.versions, self.licences, self.conditions = {}, {}, [], [], []

    def spec(self, text, named):
        match = SPEC.match(text)
        expect(match, f"'{text}' is no spec")
        expect(not match or not named or match["name"], f"'{text}' names no package")
        return match["name"] if match else None

    def condition(self, text):
        if text is not None:
            self.spec(text, False)
            self.conditions.append(text)

    def depends_on(self, spec, when=None, *, type=("build", "link"), patches=None):
        for kind in (type,) if isinstance(type, str) else type:
            expect(kind in ("build", "link", "run", "test"), f"depends_on('{spec}'): '{kind}' is no type")
        self.condition(when)
        self.dependencies[self.spec(spec, True)] = spec

    def conflicts(self, conflict_spec, when=None, msg=None):
        self.condition(conflict_spec)
        self.condition(when)

    def variant(self, name, default=None, description="", values=None, multi=None, validator=None, when=None, sticky=False):
        expect(description, f"variant '{name}' has no description")
        expect(default is not None, f"variant '{name}' has no default")
        self.condition(when)
        self.variants[name] = default

    def version(self, ver, checksum=None, *, branch=None, tag=None, commit=None, sha256=None, deprecated=None, preferred=None):
        self.versions.append(ver)

    def license(self, license_identifier, checked_by=None, when=None):
        self.licences.append(license_identifier)

    def generator(self, *names, default=None):
        expect(set(names) <= {"make", "ninja"}, f"generator{names}: neither make nor ninja")

    def run_after(self, *phases, when=None):
        expect(set(phases) <= {"cmake", "build", "install"}, f"run_after{phases}: no phase of CMakePackage")
        return lambda function: function

    def on_package_attributes(self, **attributes):
        expect(set(attributes) == {"run_tests"}, f"on_package_attributes: {attributes}")
        return lambda function: function


class Spec:
    def __init__(self, variants, cuda_arch):
        self.on = variants
        self.variants = {"cuda_arch": types.SimpleNamespace(value=cuda_arch)} if "cuda" in variants else {}

    def satisfies(self, text):
        words = re.findall(r"([+~])\s?([\w-]+)", text)
        expect(words and "".join(a + b for a, b in words) == text.replace(" ", ""), f"satisfies('{text}') is not understood")
        return all((sign == "+") == (name in self.on) for sign, name in words)


def load_recipe(path, recorder):
    class CMakePackage:
        run_tests = False

        def define(self, name, value):
            if isinstance(value, (list, tuple)):
                return f"-D{name}:STRING={';'.join(value)}"
            kind = "BOOL" if isinstance(value, bool) else "STRING"
            return f"-D{name}:{kind}={'ON' if value is True else 'OFF' if value is False else value}"

        def define_from_variant(self, name, variant=None):
            return self.define(name, (variant or name.lower()) in self.spec.on)

    class CudaPackage:
        pass

    api = types.ModuleType("spack.package")
    for name in ("depends_on", "conflicts", "variant", "version", "license", "run_after", "on_package_attributes"):
        setattr(api, name, getattr(recorder, name))
    api.Executable, api.join_path = str, lambda *parts: "/".join(parts)
    modules = {"spack": types.ModuleType("spack"), "spack.package": api}
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        modules[name] = types.ModuleType(name)
    for name, contents in (("cmake", {"CMakePackage": CMakePackage, "generator": recorder.generator}),
                           ("cuda", {"CudaPackage": CudaPackage})):
        module = types.ModuleType(name)
        vars(module).update(contents)
        modules["spack_repo.builtin.build_systems." + name] = module
    sys.modules.update(modules)
    recorder.variants.update(cuda=False, cuda_arch="none")  # CudaPackage's
    recorder.dependencies["cuda"] = "cuda"
    spec = importlib.util.spec_from_file_location("package", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What CMake looks for, and who brings it in Spack.
PACKAGES = {"MPI": "mpi", "HDF5": "hdf5", "CLI11": "cli11", "nlohmann_json": "nlohmann-json", "spdlog": "spdlog", "JPEG": "jpeg",
            "PNG": "libpng", "PCRE2": "pcre2", "utf8proc": "utf8proc", "XXHASH_INCLUDE_DIR": "xxhash", "CUDAToolkit": "cuda",
            "NCCL": "nccl", "GTest": "googletest", "benchmark": "benchmark"}
NOT_SPACKS = {"Threads", "SIMDE_INCLUDE_DIR", "Python3"}  # the system's; aarch64's alone, which the recipe refuses
TOOLS = {"c", "cxx", "cmake", "ninja", "pkgconfig", "git", "fmt"}  # fmt: the one that spdlog was built with


def looked_for(source):
    found = {}
    files = [source / "CMakeLists.txt", *source.glob("cmake/*.cmake"), *source.glob("src/**/CMakeLists.txt"),
             source / "tests/CMakeLists.txt"]
    for file in files:
        for name, version in re.findall(r"^\s*find_(?:package|path)\((\w+)(?:\s+([\d.]+))?", file.read_text(), re.M):
            found[name] = version or found.get(name, "")
    return found


def check_recipe(source):
    repository = source / "jobs/packages/spack/spack_repo/computron"
    settings = dict(re.findall(r"^\s+(\w+): *(\S+)$", (repository / "repo.yaml").read_text(), re.M))
    expect(settings.get("namespace") == repository.name, f"repo.yaml: namespace {settings.get('namespace')}, folder {repository.name}")
    expect(re.fullmatch(r"v2\.\d+", settings.get("api", "")), f"repo.yaml: api {settings.get('api')}, not one of Spack 1")
    recorder = Recorder()
    module = load_recipe(repository / "packages/computron/package.py", recorder)
    expect(hasattr(module, "Computron"), "package.py of computron has no class Computron")
    expect((module.Computron.__doc__ or "").strip(), "the recipe says nothing of the package")
    expect(recorder.versions, "no version")
    expect("Apache License" in (source / "LICENSE").read_text() and recorder.licences == ["Apache-2.0"], "licence")
    for condition in recorder.conditions:
        for name in re.findall(r"[+~]\s?([\w-]+)", condition) + re.findall(r"(?<![\w-])([\w-]+)=", condition):
            expect(name in recorder.variants or name == "target", f"'{condition}': no variant {name}")
        for target in re.findall(r"target=([\w]+)", condition):
            expect(target in TARGETS, f"'{condition}': no target {target}")

    found = looked_for(source)
    for name, version in found.items():
        package = PACKAGES.get(name)
        expect(package or name in NOT_SPACKS, f"CMake looks for {name}, which packages_test.py does not know")
        if package:
            expect(package in recorder.dependencies, f"CMake looks for {name}, the recipe does not depend on {package}")
            expect(not version or f"@{version}:" in recorder.dependencies.get(package, ""),
                   f"CMake wants {name} {version}, the recipe {recorder.dependencies.get(package)}")
    least = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)", (source / "CMakeLists.txt").read_text())[1]
    expect(recorder.dependencies.get("cmake") == f"cmake@{least}:", f"CMake {least}, the recipe {recorder.dependencies.get('cmake')}")
    for package in set(recorder.dependencies) - TOOLS:
        expect(package in {PACKAGES.get(name) for name in found}, f"the recipe depends on {package}, which CMake does not look for")
    check_arguments(source, module.Computron)


def check_arguments(source, recipe):
    known = "".join(file.read_text() for file in [source / "CMakeLists.txt", *source.glob("cmake/*.cmake")])
    given = {}
    for variants in ((), ("cuda", "nccl"), ("cuda",)):
        package = recipe()
        package.spec = Spec(variants, ("80", "90"))
        for argument in package.cmake_args():
            match = re.fullmatch(r"-D(\w+):\w+=(.+)", argument)
            expect(match, f"cmake_args: '{argument}'")
            name = re.sub("^CMAKE_DISABLE_FIND_PACKAGE_", "find_package(", match[1])
            expect(name in known, f"cmake_args: CMake's files do not name {match[1]}")
            given[variants, match[1]] = match[2]
    expect(given.get(((), "COMPUTRON_CUDA")) == "OFF" and given.get((("cuda",), "COMPUTRON_CUDA")) == "ON", "COMPUTRON_CUDA")
    expect(given.get((("cuda",), "CMAKE_CUDA_ARCHITECTURES")) == "80;90", "CMAKE_CUDA_ARCHITECTURES")
    expect((("cuda",), "CMAKE_DISABLE_FIND_PACKAGE_NCCL") in given, "~nccl still finds NCCL")


# --- Apptainer --------------------------------------------------------------------------------------------------------

def stages(text):
    """[(header, {section: lines})] of each stage."""
    found = []
    for line in text.splitlines():
        if line.startswith("Bootstrap:"):
            found.append(({}, {}))
            section = None
        if line.startswith("%"):
            section = line.strip()
            found[-1][1][section] = []
        elif section is not None:
            found[-1][1][section].append(line.strip())
        elif re.match(r"\w+: ", line):
            key, value = line.split(": ", 1)
            found[-1][0][key] = value.strip()
    return found


def check_definition(source):
    text = (source / "jobs/packages/computron.def").read_text()
    names = []
    for header, sections in stages(text):
        expect({"Bootstrap", "From", "Stage"} <= set(header), f"a stage has no {{'Bootstrap', 'From', 'Stage'}}: {header}")
        arguments = {line.split("=")[0] for line in sections.get("%arguments", []) if line}
        used = " ".join([*header.values(), *(line for lines in sections.values() for line in lines if not line.startswith("#"))])
        for name in re.findall(r"\{\{ *(\w+) *\}\}", used):
            expect(name in arguments, f"stage {header.get('Stage')}: {{{{ {name} }}}} is no argument")
        for title in sections:
            words = title[1:].split()
            expect(words[0] in ("arguments", "files", "post", "environment", "runscript", "test", "labels", "help"), f"section {title}")
            if words[1:]:
                expect(words[0] == "files" and words[1] == "from" and words[2] in names, f"section {title}: no such stage before")
        names.append(header.get("Stage"))
    copied = [line.split() for line in stages(text)[0][1]["%files"] if line]
    for name, *_ in copied:
        expect((source / name).exists(), f"%files: no {name}")
    # What CMakeLists.txt enters and what is installed, without the tests.
    cmake = (source / "CMakeLists.txt").read_text() + (source / "cmake/Install.cmake").read_text()
    read = set(re.findall(r"^add_subdirectory\((\w+)\)", cmake, re.M)) | {"cmake", "include", "jobs", "CMakePresets.json"}
    read |= {word.split("/")[0] for line in re.findall(r"^install\((?:FILES|PROGRAMS|DIRECTORY) ([^)]*)\)", cmake, re.M)
             for word in line.split() if not word.startswith("$") and (source / word).exists()}
    for name in read - {"tests"}:
        expect([name, f"/src/{name}"] in copied, f"%files does not copy {name}, which a build reads")
    commands = "\n".join(stages(text)[0][1]["%post"])
    for script in re.findall(r"\bjobs/\S+\.sh", commands):
        expect((source / script).exists(), f"%post: no {script}")
    for name in re.findall(r"-D(\w+)=", commands):
        expect(name == "BUILD_TESTING" or name in cmake, f"%post: CMake does not know {name}")


check_recipe(pathlib.Path(sys.argv[1]))
check_definition(pathlib.Path(sys.argv[1]))
for text in wrong:
    print("packages_test:", text)
sys.exit(1 if wrong else 0)

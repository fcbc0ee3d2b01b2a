"""The CMake options and the target of a program."""
import dataclasses
import os
import shutil
import site

from octavo_command import flags as flags_module
from octavo_command import model as models
from octavo_command import precision as precisions
from octavo_command.errors import CommandError

# Variables with the number of ranks, as include/octavo/comm/launch.hpp reads them.
SIZES_OF_LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, and the flags that determine its build."""

    target: str
    command: str                  # the subcommand
    has_model: bool = False
    default_precision: str = ""   # empty if the program has no --precision
    trains: bool = False          # has --lora and --reduce
    required: str = ""            # the flag of the data to train on
    has_ranks: bool = False
    has_tokenizers: bool = False  # of files, which need PCRE2
    flag_of_word: str = ""        # the flag that an argument without a flag probably needs
    multiplies: bool = False      # computes GEMMs in --precision; generate only stores weights in it
    own_flags: str = ""           # part of the help: other flags that only octavo has


@dataclasses.dataclass
class Combination:
    target: str
    device: str
    options: dict           # CMake options without -D
    text: str               # for progress, such as "llama_tiny, bf16, cpu"
    model: models.Model = None
    multiplied: str = ""    # the C++ type of the precision of GEMMs that the GPU must support


def ranks_of(flags, environment):
    """Returns whether the program is one of several ranks, or has flags that concern ranks."""
    if flags.whole("tensor-parallel", 1) > 1 or flags.has("zero", "world-size"):
        return True
    return any(environment.get(name, "1") != "1" for name in SIZES_OF_LAUNCHERS)


def libraries_of_ranks(environment):
    """Returns the CMake options of MPI and NCCL.

    AUTO for a library that seems to be installed, so that runs with one rank and with several use the same
    program. OFF otherwise, so that installing the library later causes a new build.
    """
    has_mpi = any(shutil.which(name, path=environment.get("PATH", ""))
                  for name in ("mpicxx", "mpic++", "mpiCC"))
    packages = [os.path.join(folder, "nvidia/nccl")
                for folder in site.getsitepackages() + [site.getusersitepackages()]]
    has_nccl = any(os.path.exists(os.path.join(folder, "include/nccl.h"))
                   for folder in (environment.get("Nccl_ROOT", "/usr"), "/usr", "/usr/local", "/usr/local/cuda",
                                  *packages))
    return {"OCTAVO_MPI": "AUTO" if has_mpi else "OFF", "OCTAVO_NCCL": "AUTO" if has_nccl else "OFF"}


def _checkpoint_flags(flags):
    """Returns the flags of the run that wrote --checkpoint: they name the checkpoint's model and precision."""
    checkpoint = flags.get("checkpoint")
    if checkpoint is None:
        return None
    if not os.path.exists(checkpoint):
        raise CommandError(f"--checkpoint {checkpoint}: there is no such folder; pass the folder of a run or a checkpoint")
    config = flags_module.config_of_run(checkpoint)
    if config is None:
        raise CommandError(f"--checkpoint {checkpoint}: there is no config.toml of its run, which "
                           "determines the program to build; pass the run's folder")
    return flags_module.Flags(["--config", config])


def _take_from_resumed_run(flags):
    """Sets the model and the precision of the run that --resume continues, so that its program is used."""
    resume = flags.get("resume")
    if not resume:
        return
    place = flags.get("out") if resume in ("latest", "auto") else resume
    config = flags_module.config_of_run(place) if place else None
    if config is None:
        return  # the program describes what is missing
    run = flags_module.Flags(["--config", config])
    for name in ("model", "precision"):
        if flags.get(name) is None and run.get(name) is not None:
            flags.set(name, run.get(name))


def _precision(flags, otherwise, names):
    """Returns the chosen precision, and sets --precision to it."""
    chosen = precisions.take_words(flags, otherwise, names)
    if chosen is None:
        chosen = precisions.resolve(flags.get("precision", otherwise), names)
    if flags.get("precision", otherwise) != chosen:
        flags.set("precision", chosen)
    return chosen


def _of_model(program, flags, root, cache_models, options, environment):
    names = precisions.named(root)
    if program.trains:
        _take_from_resumed_run(flags)
    run = _checkpoint_flags(flags)
    base = program.default_precision
    if run is not None:
        base = run.get("precision", base)
    chosen = _precision(flags, base, names)
    model = models.resolve((run or flags).get("model", "llama_tiny"), root, cache_models)
    device = flags.get("device", "cpu")
    if device not in ("cpu", "cuda"):
        meant = "; did you mean 'cuda'?" if device.lower() in ("gpu", "nvidia") else ""
        raise CommandError(f"--device must be cpu or cuda, but is '{device}'{meant}")
    if run is not None and not precisions.is_name(chosen):
        flags.set("precision", chosen)
    if run is None and flags.get("model", "llama_tiny") != model.flag:
        flags.set("model", model.flag)
    prefix = "OCTAVO_CUDA_" if device == "cuda" else "OCTAVO_"
    options[prefix + "PRECISIONS"] = chosen
    if model.config is None:
        options[prefix + "PRESETS"] = model.name
    else:
        options["OCTAVO_MODELS"] = f"{model.name}:{os.path.join(cache_models, model.name)}"
    degree = flags.whole("tensor-parallel", 1) if program.has_ranks else 1
    if degree > 1:
        options["OCTAVO_TENSOR_PARALLEL"] = f"{model.name}:{chosen}:{degree}"
    has_adapters = program.trains and flags.whole("lora") > 0
    if has_adapters and "ForActivation<" in names.get(chosen, chosen):
        raise CommandError(f"--lora does not support ForActivation, a part of --precision {chosen}; choose "
                           "fp8-delayed-fast, or a type without ForActivation")
    if has_adapters:
        options["OCTAVO_LORA"] = f"{model.name}:{chosen}"
    if degree > 1 or has_adapters:
        options["OCTAVO_PLAIN_MODELS"] = "OFF"
    reduce = flags.get("reduce", "stored") if program.trains else "stored"
    if reduce in ("fp32", "e4m3"):
        options["OCTAVO_REDUCE"] = f"stored;{reduce}"
    if program.has_ranks and ranks_of(flags, environment):
        library = "OCTAVO_NCCL" if device == "cuda" else "OCTAVO_MPI"
        if options[library] == "OFF":
            options[library] = "ON"
    text = ", ".join([model.name, chosen, device] + ["LoRA"] * has_adapters
                     + [f"{degree} ranks a layer"] * (degree > 1))
    multiplied = names.get(chosen, chosen) if program.multiplies and device == "cuda" else ""
    return Combination(program.target, device, options, text, model, multiplied)


def combine(program, flags, root, cache_models, environment, has_gpu=lambda: False):
    """Returns what the program must be built with. Replaces flags that only `octavo` has.

    @throws CommandError  if the model, precision or device does not exist
    """
    # All lists are set: a build folder remembers those of the last combination.
    options = {"OCTAVO_PRESETS": "", "OCTAVO_PRECISIONS": "", "OCTAVO_CUDA_PRESETS": "",
               "OCTAVO_CUDA_PRECISIONS": "", "OCTAVO_MODELS": "", "OCTAVO_TENSOR_PARALLEL": "",
               "OCTAVO_LORA": "", "OCTAVO_REDUCE": "stored", "OCTAVO_PLAIN_MODELS": "ON"}
    options |= libraries_of_ranks(environment)
    tokenizers = "ON" if program.has_tokenizers else "AUTO"
    options |= {"OCTAVO_PCRE2": tokenizers, "OCTAVO_UTF8PROC": tokenizers}
    if program.has_model:
        return _of_model(program, flags, root, cache_models, options, environment)
    device = "cuda" if has_gpu() else "cpu"
    text = device
    if program.default_precision:
        chosen = _precision(flags, program.default_precision, precisions.named(root))
        if not precisions.is_name(chosen):  # it has all names
            options["OCTAVO_PRECISIONS"] = text = chosen
    return Combination(program.target, device, options, text)

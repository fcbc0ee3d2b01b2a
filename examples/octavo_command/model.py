"""The model that a command line names: a preset, or the shape of a Hugging Face folder."""
import glob
import hashlib
import os
import re

from octavo_command import files, shape
from octavo_command.errors import CommandError, nearest


def presets(root):
    """Returns the names of the library's presets."""
    names = []
    for header in sorted(glob.glob(os.path.join(root, "include/octavo/models/*_config.hpp"))):
        with open(header, encoding="utf-8") as file:
            names += re.findall(r"inline constexpr +[A-Za-z0-9]+Config +([a-z0-9_]+)", file.read())
    return names


class Model:
    """A model as programs and CMake name it.

    name    the preset, or a name derived from the config.json, so that equal shapes share builds
    flag    the value of --model for the program
    config  the config.json with the shape; None for a preset
    """

    def __init__(self, name, flag=None, config=None):
        self.name, self.flag, self.config = name, flag or name, config


def _of_equal_shape(config, root, models):
    """Returns the preset, or the model in the cache, that has the shape of a config.json: its name and its
    config.json, which is None for a preset. Returns None if there is none."""
    wanted = shape.of_file(config)
    if wanted is None:
        return None
    for name, preset in shape.presets(root).items():
        if preset == wanted:
            return name, None
    kept = filter(os.path.isfile, glob.glob(os.path.join(models, "*", "config.json")))
    for path in sorted(kept, key=os.path.getmtime):
        if shape.of_file(path) == wanted:
            return os.path.basename(os.path.dirname(path)), path
    return None


def _of_folder(folder, given, prefix, root, models):
    config = os.path.join(folder, "config.json")
    _require_folder(folder, given)
    try:
        digest = hashlib.sha256(files.read_shape(config)).hexdigest()[:8]
    except OSError as error:
        raise CommandError(f"--model {given}: cannot read {config}: {error.strerror}; pass a folder "
                           "with a config.json") from error
    base = re.sub(r"[^a-z0-9]+", "_", os.path.basename(os.path.abspath(folder)).lower()).strip("_")
    name = f"{base[:40] if base[:1].isalpha() else 'model_' + base[:40]}_{digest}"
    if prefix == "shape":  # the run's files contain the name
        return Model(name, name, config)
    equal = _of_equal_shape(config, root, models)
    if equal is not None:
        return Model(equal[0], f"hf:{folder}", equal[1])
    return Model(name, f"hf:{folder}", config)


def _kept(name, models):
    """Returns the config.json of a model in the cache, or None."""
    path = os.path.join(models, name, "config.json")
    return path if re.fullmatch(r"[a-z0-9_]+", name) and os.path.isfile(path) else None


def take_for_plan(flags, root, models):
    """Checks --model of `plan`, which needs only a shape, and gives it the form that plan_memory reads.

    A folder and shape:FOLDER become hf:FOLDER, and a model in the cache becomes its config.json.
    @param models  the cache's folder of shapes
    """
    given = flags.get("model")
    if given is None or given in presets(root) or given.endswith(".json"):
        return
    kept = _kept(given, models)
    if kept:
        flags.set("model", kept)
        return
    prefix, sign, folder = given.partition(":")
    if not sign or prefix not in ("hf", "shape"):
        folder = given
        if not os.path.isdir(given):
            _refuse(given, presets(root))
    _require_folder(folder, given)
    if given != f"hf:{folder}":
        flags.set("model", f"hf:{folder}")


def _require_folder(folder, given):
    if not os.path.isdir(folder):
        raise CommandError(f"--model {given}: there is no such folder; download the model, and pass hf: "
                           "and its folder")


def _refuse(given, known):
    if re.fullmatch(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", given):
        raise CommandError(f"--model {given}: there is no such folder; download a model of Hugging Face first, for "
                           f"example with git clone https://huggingface.co/{given}, and pass hf: and its folder")
    raise CommandError(f"--model must be one of {', '.join(known)}, hf:FOLDER or shape:FOLDER, but is "
                       f"'{given}'{nearest(given, known)}")


def resolve(given, root, models):
    """Finds the model of --model.

    hf:FOLDER, or only the folder, loads the folder's weights; shape:FOLDER initialises new weights.
    @param models  the cache's folder of shapes, each in NAME/config.json
    """
    prefix, sign, folder = given.partition(":")
    if sign and prefix in ("hf", "shape"):
        return _of_folder(folder, given, prefix, root, models)
    known = presets(root)
    if given in known:
        return Model(given)
    if os.path.isdir(given):
        return _of_folder(given, given, "hf", root, models)
    kept = _kept(given, models)
    if kept:
        files.read_shape(kept)
        return Model(given, config=kept)
    _refuse(given, known)

"""Checks of arguments that need no built program, so that a mistake does not cost a build.

The programs check all arguments themselves; this module only finds mistakes that the sources show.
"""
import os
import re
import shlex

from octavo_command import cache, pages
from octavo_command.errors import CommandError, nearest
from octavo_command.importing import limits

TRAINERS = ("train_llama", "finetune_llama")


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def _foreign_advice(name, own, root):
    """Returns the end of a message, "; use 'learning-rate' instead", if NAME is another trainer's name for one of the
    flags `own`; otherwise "". The programs read the same list."""
    header = _read(os.path.join(root, "examples/common/foreign_flags.hpp"))
    for flag, words, advice in re.findall(r'ForeignFlags\{\s*"([a-z0-9-]+)",((?:\s*"[^"]*")+)(?:,\s*"([^"]*)")?\}', header):
        if flag in own and name in words.replace('"', " ").split():
            return f"; use '{flag}' instead{advice}. See --help"
    return ""


def require_known_flags(flags, root, target):
    """Checks that a program has all flags; tests/examples/octavo_help_test.py checks that the pages list them."""
    end = flags.words.index("--") if "--" in flags.words else len(flags.words)
    given = [word for word in flags.words[:end] if word.startswith("--")]
    own = {"help", *pages.flags(root, target)}
    for before, word in zip(["", *flags.words], flags.words[:end]):
        if word[:1] == "-" and word[1:].partition("=")[0] in own and not before.startswith("--"):
            raise CommandError(f"'{word}' has one dash; use -{word}")
    for word in given:
        name = word.partition("=")[0][2:].lower().replace("_", "-")
        if name not in own:
            if target in TRAINERS:
                other = next(one for one in TRAINERS if one != target)
                if name in pages.flags(root, other):
                    command = other.removesuffix("_llama")
                    raise CommandError(
                        f"'{name}' is a flag of {other}, not of {target}; octavo {command} runs {other}")
            advice = _foreign_advice(name, own, root)
            if not advice:
                advice = nearest(name, sorted(own))
                advice += " See --help" if advice else "; see --help"
            raise CommandError(f"unknown option '{name}'{advice}")


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_numbers(flags, root, target):
    """Checks that flags whose documented default is a number have one, too, and the ranges that the trainers share."""
    for _title, names, default, _description in pages.rows(root, target):
        defaults = default.split(", ")
        for name, number in zip(names, defaults if len(defaults) == len(names) else []):
            if not re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", number):
                continue
            for value in flags.values(name):
                if value.startswith("--"):
                    raise CommandError(f"--{name} must have a value, but {value} follows; add one, such as {number}")
                # The programs accept a time such as 90s, and explain a decimal comma.
                is_text = name != "max-time" and not _is_number(value.replace(",", "."))
                if is_text or not re.search("[0-9]", value) or value.startswith("-"):
                    raise CommandError(f"--{name} must be a number of at least 0, such as {number}, but is '{value}'")
                rule = target in TRAINERS and _is_number(value) and limits.broken(name, float(value))
                if rule:
                    raise CommandError(f"--{name} must be {rule}, but is {value}")


def require_no_word_first(words, flag):
    """Checks that the command line begins with a flag. `flag` is what an argument without a flag probably needs, or ""."""
    if flag and words and words[0] and not words[0].startswith("-"):
        raise CommandError(f"unexpected argument '{words[0]}'; every value needs its flag, such as --{flag} "
                           f"{shlex.quote(words[0])}")


def words_of(flags, switches=()):
    """Returns the arguments that are not values of flags.

    @param switches  the flags without a value
    """
    found, words = [], iter(flags.words)
    for word in words:
        if word == "--":
            return found + list(words)
        if word == "-" or not word.startswith("-"):
            found.append(word)
        elif "=" not in word and word[2:] not in switches:
            next(words, None)
    return found


def _require_existing(paths, what, flag=""):
    for path in paths:
        if not os.path.exists(path):
            start = "" if os.path.isabs(path) else f"; relative paths start at {os.getcwd()}"
            raise CommandError(f"{flag}{path}: there is no such {what}; check the path{start}")


def require_texts(flags, _root):
    """Checks the arguments of `prepare_data`."""
    texts = words_of(flags, ("special",))
    if not texts:
        raise CommandError("no text is given; pass text files or .jsonl files, or - to read standard input")
    if not flags.get("out"):
        raise CommandError("--out is required: pass a new file for the tokens")
    _require_existing([text for text in texts if text != "-"], "file")


def require_runs(flags, _root):
    """Checks the arguments of `compare_runs`. With --watch, the program waits for runs that do not exist yet."""
    runs = words_of(flags)
    if not runs:
        raise CommandError("no run is given; pass the folders of the runs to compare")
    if flags.get("watch") is None:
        _require_existing(runs, "folder")


# Flags whose values are files or folders to read.
INPUTS = ("data", "validation-data", "chats", "validation-chats", "config", "tokenizer", "hellaswag", "load-adapters")
# The required flags of programs that train, and what to pass.
REQUIRED = {"data": "a text file or a folder of text files",
            "chats": "a file with one chat per line, or a JSON array of chats"}


def require_inputs(flags, required=None):
    """Checks that the flags name existing files, which are not empty.

    @param required  the flag of the training data, from REQUIRED, if the program trains
    """
    for name in INPUTS:
        for path in flags.values(name):
            without_weight = re.sub(r":[0-9.eE+-]+$", "", path)
            for file in (path, without_weight):
                if name != "config" and os.path.isfile(file) and os.path.getsize(file) == 0:
                    raise CommandError(f"--{name} {file}: the file is empty; pass another")
            if (not path or path.startswith("-") or re.search(r"[*?[]", path)  # left to the program
                    or (name, path) == ("tokenizer", "bytes") or os.path.exists(path) or os.path.exists(without_weight)):
                continue
            _require_existing([path], "file or folder", f"--{name} ")
    # With these flags, the program does not train, or gives its own advice.
    if required and not flags.values(required) and not flags.has("resume", "list-checkpoints", "export-hf",
                                                                 "replay-step"):
        raise CommandError(f"--{required} is required: pass {REQUIRED[required]}")


def require_gpu(environment, devices="/dev"):
    """Checks that this machine has a GPU, because a program for `cuda` is compiled for it and runs on it."""
    # A container may have the GPU's device without nvidia-smi; WSL names it dxg.
    if (cache.architecture(environment) is None
            and not any(os.path.exists(os.path.join(devices, name)) for name in ("nvidiactl", "dxg"))):
        raise CommandError("--device cuda needs an NVIDIA GPU, but nvidia-smi finds none on this machine; run octavo "
                           "on a machine with a GPU, or pass --device cpu")


def chat_templates(root):
    header = _read(os.path.join(root, "include/octavo/data/chat_template.hpp"))
    names = re.search(r"chat_template_names\{(.*?)\}", header, re.S)
    return re.findall(r'"([^"]+)"', names[1])


def _require_template(flags, name, root):
    """Checks that the value of --NAME is a chat template or a file."""
    chosen, names = flags.get(name), chat_templates(root)
    if chosen is not None and chosen not in names and not os.path.exists(chosen):
        raise CommandError(f"--{name} must be one of {', '.join(names)}, or a JSON file, but is '{chosen}'"
                           f"{nearest(chosen, names)}")


def require_chats(flags, root):
    """Checks the flags that --chats needs."""
    if flags.values("chats") and not flags.get("chat-template"):
        raise CommandError("--chat-template is required: pass the one that the model was trained with, such as llama3")
    _require_template(flags, "chat-template", root)


def require_finetuning(flags, root):
    """Checks the flags of `finetune_llama` that do not depend on the model's shape."""
    require_chats(flags, root)
    if not flags.values("chats") or flags.get("tokenizer") or flags.has("resume"):
        return
    model = flags.get("model", "")
    if not model.startswith("hf:"):
        raise CommandError("--tokenizer is required, except with --model hf:FOLDER: pass the model's tokenizer")
    folder = model.removeprefix("hf:")
    names = ("tokenizer.json", "tokenizer.model")
    if not any(os.path.exists(os.path.join(folder, name)) for name in names):
        raise CommandError(f"{folder} contains neither {' nor '.join(names)}; pass --tokenizer, or copy the model's "
                           "tokenizer there")


def require_evaluation(flags, root):
    """Checks the flags of `evaluate` that do not depend on the model."""
    if not any(flags.values(name) for name in ("data", "chats", "hellaswag")):
        raise CommandError("nothing to evaluate; pass --data, --chats or --hellaswag")
    require_chats(flags, root)


def cards(root):
    """Returns the names of GPUs that the programs know."""
    return re.findall(r'GpuCard\{\s*"([^"]+)"', _read(os.path.join(root, "examples/common/gpu_cards.hpp")))


def plain_name(name):
    """Returns a name as cards are compared: letters and digits in lower case, without the maker
    and its brands."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for maker in ("nvidia", "geforce", "rtx"):
        plain = plain.removeprefix(maker)
    return plain


def require_card(flags, name, root):
    """Checks that the value of --NAME is a card or a compute capability; the programs check that it has a value."""
    if flags.words[-1:] == [f"--{name}"]:
        return
    card = flags.get(name)
    if not card or card.startswith("-"):
        return
    if re.match(r"(\d{1,2}\.\d|(sm|compute)_\d{2,3}[af]?)(:|$)", card):
        return
    if not any(plain_name(known).startswith(plain_name(card) or "-") for known in cards(root)):
        raise CommandError(f"--{name} must be one of {', '.join(cards(root))}, or a compute capability such as "
                           f"sm_86, but is '{card}'{nearest(card, cards(root))}")


def require_generation(flags, root):
    """Checks the flags of `generate` that do not depend on the model."""
    model = flags.get("model", "")
    if flags.get("checkpoint") is None and not model.startswith("hf:") and not os.path.isdir(model):
        raise CommandError("a preset has no weights; pass --model hf:FOLDER or --checkpoint FOLDER")
    if flags.get("system") and flags.get("chat") is None:
        raise CommandError("--system needs a chat template; also pass --chat")
    _require_template(flags, "chat", root)

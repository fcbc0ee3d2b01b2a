"""Reads files and command lines of other trainers into settings."""
import ast
import json
import os
import re
import warnings

from octavo_command import files
from octavo_command.errors import CommandError
from octavo_command.importing import llm_c, llm_c_llama3, llm_c_python, report
from octavo_command.importing.run import Setting
from octavo_command.importing.shell import Shell
from octavo_command.importing.unresolved import mark, unresolved

MEGATRON = {"--micro-batch-size", "--hidden-size", "--tensor-model-parallel-size", "--train-iters"}  # only its flags
LLM_C = {llm_c_python.PROGRAM: "llm_c_python", llm_c_llama3.PROGRAM: "llm_c_llama3"}
LONGEST_SCRIPT = 1 << 18
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "llamafactory-cli", "python", "python3", "torchtitan")


def read_text(path):
    try:
        return files.read(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}; pass a configuration or a script") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} must be UTF-8 text, but is not; pass a configuration or a script") from None


def read(run, path, given, trainer=None):
    """Reads a file, and the files that it names."""
    if path in run.files:
        return
    text = read_text(path)
    run.files.append(path)
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".json":
        read_mapping(run, path, parse_json(path, text), trainer)
    elif suffix in (".yaml", ".yml"):
        read_mapping(run, path, parse_yaml(path, text), trainer)
    elif suffix == ".toml":
        read_mapping(run, path, parse_toml(path, text), trainer or "torchtitan")
    elif suffix == ".py":
        read_python(run, path, text)
    else:
        read_script(run, path, text, given)


def parse_json(path, text):
    def unique(pairs):
        require_once(path, [key for key, _ in pairs])
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} must be valid JSON, but is not: {error}; correct it") from None


def require_once(path, keys):
    """Refuses a key that occurs twice: parsers would drop the first value."""
    for key in keys:
        if keys.count(key) > 1:
            raise CommandError(f"{path}: a section must contain a key once, but contains "
                               f"'{report.cut(key, 60)}' twice; remove one")


def parse_yaml(path, text):
    try:
        import yaml
    except ImportError:
        raise CommandError(f"{path} is YAML, which needs Python's module yaml; "
                           "install it: apt-get install python3-yaml") from None

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            if isinstance(node, yaml.MappingNode):
                require_once(path, [key.value for key, _ in node.value
                                    if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge"])
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    # PyYAML raises more than its own errors for values that do not fit their tags, such as the date 2020-13-45.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise CommandError(f"{path} must be valid YAML, but is not: {' '.join(str(error).split())}; correct it") from None


def parse_toml(path, text):
    try:
        import tomllib
    except ImportError:
        raise CommandError(f"{path} is TOML, which needs Python 3.11; install it: apt-get install python3.11, "
                           "and run octavo with it") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} must be valid TOML, but is not: {error}; correct it") from None


def trainer_of(keys):
    """Returns the trainer whose files have these keys at the top level."""
    signs = (("deepspeed", "zero_optimization train_micro_batch_size_per_gpu train_batch_size"),
             ("accelerate", "compute_environment distributed_type num_machines machine_rank fp8_config"),
             ("llama_factory", "finetuning_type template cutoff_len stage dataset_dir"),
             ("hugging_face", "output_dir per_device_train_batch_size learning_rate num_train_epochs max_steps"))
    for trainer, names in signs:
        if any(name in keys for name in names.split()):
            return trainer
    return None


def read_mapping(run, path, content, trainer):
    if not isinstance(content, dict):
        raise CommandError(f"{path} must contain keys and values at the top level, but does not; "
                           "pass a configuration")
    require_small(path, content)
    trainer = trainer or trainer_of(content)
    if trainer is None:
        raise CommandError(f"{path} must be a configuration of a known trainer, but its keys are of none: "
                           f"{report.cut(', '.join(list(map(str, content))[:5]), 200)}; pass --from TRAINER")
    add(run, trainer, flattened(content), path)


def require_small(path, content, most_values=10_000, most_levels=100):
    """Refuses content with too many values or levels, and numbers that Python does not print.

    Aliases can make YAML recursive, or expand it to billions of values.
    """
    values, rest = 0, [(content, 1)]
    while rest:
        value, level = rest.pop()
        parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
        if isinstance(value, int) and value.bit_length() > 1024:
            raise CommandError(f"{path}: a whole number must have at most 1024 bits, but one has {value.bit_length()}; "
                               "correct it")
        values += 1
        if values + len(rest) + len(parts) > most_values or level > most_levels:
            raise CommandError(f"{path} must have at most {most_values} values on {most_levels} levels, but has more; "
                               "remove entries that are not settings")
        rest += [(part, level + 1) for part in parts]


def flattened(content, before=""):
    """Returns the keys of nested tables, joined by dots. Empty tables remain values."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def add(run, trainer, pairs, place):
    if trainer not in run.trainers:
        run.trainers.append(trainer)
    for key, value in pairs:
        run.settings.append(Setting(key, value, place, trainer))


def read_python(run, path, text):
    """Reads the constant arguments of TrainingArguments(...) and of a dictionary with that name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's code
            tree = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise CommandError(f"{path} must be valid Python, but is not: {error or 'it is nested too deeply'}; "
                           "correct it") from None
    found = False
    for node in ast.walk(tree):
        name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
        if re.fullmatch(r"(Seq2Seq)?TrainingArguments|SFTConfig", name):
            pairs = [(word.arg, word.value) for word in node.keywords if word.arg]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and \
                any("training_arg" in getattr(target, "id", "").lower() for target in node.targets):
            pairs = [(key.value, value) for key, value in zip(node.value.keys, node.value.values)
                     if isinstance(key, ast.Constant)]
        else:
            continue
        found = True
        for key, value in pairs:
            content = {key: constant(value)}
            require_small(path, content)
            add(run, "hugging_face", flattened(content), f"{path}:{value.lineno}")
    if not found:
        raise CommandError(f"{path} must contain TrainingArguments(...) or a dictionary training_args, but does not; "
                           "pass the arguments as JSON")


def constant(node):
    """Returns the value of an expression of Python, or a mark if it is not a constant."""
    for convert in (ast.literal_eval, lambda other: mark(ast.unparse(other))):
        try:
            return convert(node)
        except (ValueError, TypeError, RecursionError, MemoryError):
            continue
    return mark("a long expression")


def read_script(run, path, text, given):
    if len(text) > LONGEST_SCRIPT:
        raise CommandError(f"{path}: a script must have at most {LONGEST_SCRIPT} characters, but has {len(text)}; pass "
                           "the command line itself behind --")
    script = Shell(text, given, os.path.dirname(path))
    run.has_script = True
    started = [command for command in script.commands if is_trainer(command.words)]
    if len(started) != 1:
        lines = ", ".join(str(command.line) for command in started) or "none"
        raise CommandError(f"{path} must start a trainer once, but starts it in these lines: {lines}; "
                           "pass the command line itself behind --")
    for name, line in script.exported.items():
        value = script.variables.values.get(name, "")
        run.environment[name] = value
        run.settings.append(Setting(name, value, f"{path}:{line}",
                                    "script" if name in script.variables.used else "environment"))
    command = started[0]
    read_command(run, command.words, f"{path}:{command.line}", command.environment, os.path.dirname(path), given)


def is_trainer(words):
    """Whether a command starts a trainer: a launcher with a program, or a command whose words are unresolved."""
    if len(words) == 1 and unresolved(words[0]):
        return True
    if llm_c.position(words) is not None:
        return True
    program = re.compile(r"\.py$|^(torchtitan|megatron|llamafactory)\b|^train$")
    return any(os.path.basename(word) in LAUNCHERS for word in words[:12]) and any(map(program.search, words))


def read_command(run, words, place, environment, folder, given):
    """Reads a command line: a launcher with its flags, the trainer's program, and its flags."""
    run.has_script = True
    run.commands.add(place)
    if unresolved(words[0]):
        raise CommandError(f"{place}: whether the trainer starts depends on {unresolved(words[0])[:60]}; "
                           "pass --set NAME=VALUE, or the command line itself behind --")
    for name, value in environment.items():
        run.environment[name] = value
        run.settings.append(Setting(name, value, place, "environment"))
    if llm_c.position(words) is not None:
        read_llm_c(run, words, place, folder, given)
        return
    begin = next((at for at, word in enumerate(words) if os.path.basename(word) in LAUNCHERS), 0)
    if begin > 0:
        run.settings.append(Setting(" ".join(words[:begin]), True, place, "wrapper"))
    launcher = os.path.basename(words[begin])
    words = words[begin + 1:]
    if "accelerate.commands.launch" in words:
        launcher = "accelerate"
    if launcher == "llamafactory-cli":
        program, rest = "llamafactory", words[1:] if words[:1] == ["train"] else words
    else:
        at, module = 0, False
        while at < len(words) and not is_program(words, at):
            at += 1
        if at == len(words):
            raise CommandError(f"{place}: the command must name the trainer's program, such as pretrain_gpt.py, "
                               "but names none")
        module = at > 0 and words[at - 1] in ("-m", "--module")
        launcher_flags(run, words[:at - 1 if module else at], launcher, place, folder, given)
        program, rest = words[at], words[at + 1:]
    read_flags(run, program, rest, place, folder, given)


def read_llm_c(run, words, place, folder, given):
    """Reads a command line of llm.c: an MPI launcher, the program, and pairs of a flag and its value."""
    at = llm_c.position(words)
    if at > 0:
        launcher_flags(run, words[1:at], words[0], place, folder, given)
    flags = words[at + 1:]
    for number, flag in enumerate(flags[::2]):
        if not re.fullmatch(r"-[a-z]{1,2}", flag) or 2 * number + 1 == len(flags):
            raise CommandError(f"{place}: llm.c's flags must be pairs such as -b 64, but '{flag[:60]}' is "
                               f"{'the last word' if flag.startswith('-') else 'not a flag'}")
    add(run, "llm_c", zip(flags[::2], flags[1::2]), place)


def is_program(words, at):
    if words[at] in ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"):
        return False
    return words[at].endswith(".py") or at > 0 and words[at - 1] in ("-m", "--module")


def flag_pairs(words):
    """Splits words into flags with their values; words before the first flag have the key ""."""
    pairs = []
    for word in words:
        if word.startswith("-") and not re.match(r"-[\d.]", word):
            key, sign, value = word.partition("=")
            pairs.append((key, [value] if sign else []))
        elif pairs:
            pairs[-1][1].append(word)
        else:
            pairs.append(("", [word]))
    return [(key, True if not values else values[0] if len(values) == 1 else values) for key, values in pairs]


def launcher_flags(run, words, launcher, place, folder, given):
    words = [word for word in words if word not in ("launch", "-m", "-u", "torch.distributed.run",
                                                    "torch.distributed.launch", "accelerate.commands.launch")]
    for key, value in flag_pairs(words):
        name = key.lstrip("-")
        if launcher == "accelerate" and name == "config_file":
            read_named(run, Setting(key, value, place, "accelerate"), folder, given, "accelerate")
        elif launcher == "accelerate":
            add(run, "accelerate", [(accelerate_key(name), value)], place)
        elif key == "" and launcher == "deepspeed":
            continue
        else:
            run.settings.append(Setting(key or str(value), value, place, "launcher"))


def accelerate_key(name):
    """Returns the key in Accelerate's file for a flag of `accelerate launch`."""
    for section in ("fsdp", "fp8", "parallelism_config", "megatron_lm"):
        if name.startswith(section + "_"):
            key = name if section != "fp8" else name.removeprefix("fp8_")
            return f"{section if section == 'parallelism_config' else section + '_config'}.{key}"
    deepspeed = ("zero", "offload", "deepspeed", "gradient_")
    return f"deepspeed_config.{name}" if name.startswith(deepspeed) else name


def read_flags(run, program, words, place, folder, given):
    """Reads the flags of the trainer's program."""
    name = os.path.basename(program)
    if "torchtitan" in program or any(word.startswith("--job.config_file") for word in words):
        for key, value in flag_pairs(words):
            if key in ("--job.config_file", "--job.config-file"):
                read_named(run, Setting(key, value, place, "torchtitan"), folder, given, "torchtitan")
            else:
                add(run, "torchtitan", [(key.lstrip("-").replace("-", "_"), value)], place)
    elif name in LLM_C and not MEGATRON & {word.partition("=")[0] for word in words}:
        add(run, LLM_C[name], flag_pairs(words), place)
    elif re.match(r"(pretrain|train)_(gpt|mamba|llama|hybrid|bert|t5|vlm)", name) or "megatron" in program.lower() or \
            MEGATRON & {word.partition("=")[0] for word in words}:
        add(run, "megatron", flag_pairs(words), place)
    elif "llamafactory" in program or "llama_factory" in program.lower() or "LLaMA-Factory" in program:
        for word in words:
            if word.endswith((".yaml", ".yml", ".json")) and not word.startswith("-"):
                read_named(run, Setting(word, word, place, "llama_factory"), folder, given, "llama_factory")
            elif "=" in word and not word.startswith("-"):
                add(run, "llama_factory", [tuple(word.split("=", 1))], place)
        flags = [word for word in words if word.startswith("-") or not re.search(r"=|\.ya?ml$|\.json$", word)]
        add(run, "llama_factory", [(key.lstrip("-"), value) for key, value in flag_pairs(flags)], place)
    else:
        pairs = flag_pairs(words)
        if pairs and pairs[0][0] == "" and str(pairs[0][1]).endswith(".json"):
            named = Setting(str(pairs[0][1]), pairs[0][1], place, "hugging_face")
            read_named(run, named, folder, given, "hugging_face")
            pairs = pairs[1:]
        add(run, "hugging_face", [(key.lstrip("-"), value) for key, value in pairs], place)


def read_named(run, setting, folder, given, trainer):
    """Reads a file that a source names, if it exists; the name becomes a setting."""
    name = str(setting.value)
    for path in (name, os.path.join(folder, name), os.path.join(folder, os.path.basename(name))):
        if os.path.isfile(path):
            read(run, path, given, trainer)
            setting.answer, setting.text = "mapped", f"read from {path}"
            break
    else:
        setting.answer, setting.text = "refused", f"{name} does not exist here; pass the file to octavo import"
    run.settings.append(setting)

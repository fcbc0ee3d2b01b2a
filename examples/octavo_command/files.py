"""Reading of the files that a command line names."""
import json
import os
import stat

from octavo_command.errors import CommandError

MOST_BYTES = 16 << 20
# Whole numbers that cmake/OctavoAddModel.cmake reads for several families.
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")


def read(path, most=MOST_BYTES):
    """Returns the bytes of a regular file.

    @throws CommandError  if it is not a regular file or is larger than `most`
    @throws OSError       if it cannot be read
    """
    # A pipe without a writer would block.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CommandError(f"{path} must be a regular file, but is not; pass a file")
        data = file.read(most + 1)
    if len(data) > most:
        raise CommandError(f"{path} must have at most {most >> 20} MiB, but is larger; pass another file")
    return data


def read_shape(path):
    """Returns the bytes of a model's config.json, after checks that need no build.

    @throws CommandError  if it is not a JSON object, or a size is not a positive whole number
    @throws OSError       if it cannot be read
    """
    data = read(path)
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        raise CommandError(f"{path} must be valid JSON, but is not; pass a folder with the model's "
                           "config.json") from None
    if not isinstance(config, dict):
        raise CommandError(f"{path} must contain a JSON object, but does not; pass a folder with the "
                           "model's config.json")
    for name in SIZES:
        value = config.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise CommandError(f"{path}: {name} must be a positive whole number, but is "
                               f"{json.dumps(value)[:40]}; correct it")
    return data

"""Token files with an index, against the reader and the writer of megatron-core."""
import random
import shutil

import numpy
from megatron.core.datasets import indexed_dataset

import support

FILES = 60


def write(prefix, documents, dtype):
    builder = indexed_dataset.IndexedDatasetBuilder(str(prefix) + ".bin", dtype=dtype)
    for document in documents:
        builder.add_document(document, [len(document)])
    builder.finalize(str(prefix) + ".idx")


def check(report, programs, work):
    import torch
    rng = random.Random(5)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    probe = programs / "against_peers_probe"
    differences = []
    for i in range(FILES):
        vocabulary = rng.choice([200, 50257, 65499, 65500, 128256, 2**31 - 1])
        dtype = indexed_dataset.DType.optimal_dtype(vocabulary)
        documents = [torch.tensor([rng.randrange(vocabulary) for _ in range(rng.randint(1, 50))],
                                  dtype=torch.int64) for _ in range(rng.randint(1, 30))]
        write(work / f"{i}", documents, dtype)
        expected = numpy.concatenate([document.numpy() for document in documents])
        found = numpy.frombuffer(support.call(probe, "token-file", work / f"{i}.bin", vocabulary), numpy.int32)
        if not numpy.array_equal(found, expected):
            differences.append(f"{i}: {len(found)} tokens, not {len(expected)}, or others")
    report.add("files of megatron-core's writer", FILES, differences)
    differences = []
    for i in range(FILES):
        texts = [bytes(rng.randrange(1, 128) for _ in range(rng.randint(0, 200))).replace(b"\r", b" ")
                 for _ in range(rng.randint(1, 20))]
        files = []
        for j, text in enumerate(texts):
            files.append(work / f"{i}.{j}.txt")
            files[-1].write_bytes(text or b"x")
        prefix = work / f"octavo{i}"
        support.call(programs / "prepare_data", *files, "--out", prefix, "--format", "megatron",
                     "--end", "none")
        dataset = indexed_dataset.IndexedDataset(str(prefix))
        found = [bytes(dataset[j].astype(numpy.uint8)) for j in range(len(dataset))]
        if found != [file.read_bytes() for file in files] or \
                list(dataset.document_indices) != list(range(len(files) + 1)):
            differences.append(f"{i}: other documents")
    report.add("files of prepare_data, by megatron-core's reader", FILES, differences)


if __name__ == "__main__":
    support.main(check)

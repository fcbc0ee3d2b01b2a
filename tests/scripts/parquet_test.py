"""parquet-to-jsonl writes the rows of Parquet files as JSON Lines. Without pyarrow, only its absence is
tested."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "parquet-to-jsonl"
try:
    import pyarrow
    from pyarrow import parquet
except ImportError:
    pyarrow = None


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, encoding="utf-8",
                          check=False)


class WithoutPyarrow(unittest.TestCase):
    @unittest.skipIf(pyarrow, "pyarrow is installed")
    def test_it_says_what_to_install(self):
        done = run("absent.parquet")
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stderr, "parquet-to-jsonl: pyarrow is missing; install it: pip install pyarrow\n")


@unittest.skipUnless(pyarrow, "pyarrow is not installed: pip install pyarrow")
class ParquetToJsonLines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, rows, **options):
        path = self.folder / name
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
        return path

    def rows(self, *arguments):
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [json.loads(line) for line in done.stdout.split("\n")[:-1]]

    def test_texts_of_many_row_groups(self):
        texts = [{"text": f"{i} \u00e9\u2028\n\U0001f600", "meta": i} for i in range(5000)]
        path = self.write("a.parquet", texts, row_group_size=700)
        self.assertEqual(self.rows(path, path), 2 * [{"text": row["text"]} for row in texts])
        self.assertEqual(self.rows(path, "--columns", "meta,text"), texts)

    def test_chats(self):
        chats = [{"id": "1", "messages": [{"role": "user", "content": "a"},
                                          {"role": "assistant", "content": "b"}]}]
        self.assertEqual(self.rows(self.write("a.parquet", chats)), [{"messages": chats[0]["messages"]}])

    def test_columns_that_do_not_exist(self):
        done = run(self.write("a.parquet", [{"body": "x"}]))
        self.assertEqual(done.returncode, 2)
        self.assertIn("has no column of documents or chats; pass --columns with some of body", done.stderr)
        done = run(self.write("b.parquet", [{"text": "x"}]), "--columns", "text,no")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("has no column no; its columns are text", done.stderr)

    def test_files_that_cannot_be_read(self):
        whole = self.write("a.parquet", [{"text": "x" * 1000}]).read_bytes()
        (self.folder / "cut.parquet").write_bytes(whole[:-20])
        for name in ("cut.parquet", "absent.parquet"):
            done = run(self.folder / name)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"{name}: ", done.stderr)

    def test_a_reader_that_stops(self):
        path = self.write("a.parquet", [{"text": "x" * 1000}] * 5000)
        with subprocess.Popen([sys.executable, SCRIPT, path], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as done:
            done.stdout.read(10)
            done.stdout.close()
            self.assertEqual(done.stderr.read(), b"")
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()

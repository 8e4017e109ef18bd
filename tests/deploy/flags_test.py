"""Flags, configuration file and deploy/README.md are of one mind.

usage: flags_test.py GDPCACHED SOURCE-DIRECTORY
"""

import pathlib
import re
import subprocess
import sys
import unittest

GDPCACHED, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])


def flag_groups():
    """Group -> flag -> default, as --help has them."""
    text = subprocess.run([GDPCACHED, "--help"], capture_output=True, text=True, check=True).stdout
    groups, group, flag = {}, None, None
    for line in text.splitlines():
        if re.match(r"[A-Z]\w*$", line):
            group = groups.setdefault(line, {})
        elif match := re.match(r"  --([a-z-]+)", line):
            flag = match.group(1)
            if group is not None:
                group[flag] = ""
        elif group is not None and flag is not None and line.startswith("      "):
            group[flag] += " " + line.strip()
    groups.pop("Other")
    return {
        group: {flag: re.search(r"\(default: (.*)\)$", text).group(1) for flag, text in flags.items()}
        for group, flags in groups.items()
    }


class FlagsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.groups = flag_groups()
        cls.flags = {flag: default for group in cls.groups.values() for flag, default in group.items()}
        cls.readme = (SOURCE / "deploy/README.md").read_text()
        section = re.search(r"^## Limits\n(.*?)^##", cls.readme, re.MULTILINE | re.DOTALL).group(1)
        cls.rows = [line for line in section.splitlines() if line.startswith("| ")]

    def limit_rows(self):
        """Flag -> its row of the table of limits."""
        rows = {}
        for row in self.rows:
            for flag in re.findall(r"`--([a-z-]+)`", row.split(" | ")[2] if row.count(" | ") >= 3 else ""):
                self.assertNotIn(flag, rows, "it has two rows")
                rows[flag] = row
        return rows

    def test_every_field_of_the_file_is_a_flag_and_every_flag_a_field(self):
        proto = (SOURCE / "proto/gdpcache/config/v1/server_config.proto").read_text()
        message = re.search(r"^message ServerConfig \{(.*?)^\}", proto, re.MULTILINE | re.DOTALL).group(1)
        field = r"^  (?:optional (?:string|int64|bool)|repeated string) (\w+) = \d+;"
        fields = re.findall(field, message, re.MULTILINE)
        self.assertEqual({field.replace("_", "-") for field in fields}, set(self.flags) - {"config"})

    def test_every_limit_has_a_row_with_its_default_and_every_row_is_one(self):
        rows = self.limit_rows()
        of_snapshots = {flag for flag in self.groups["Snapshots"] if re.search("memory|size|quota|budget|ttl", flag)}
        limits = set(self.groups["Limits"]) | of_snapshots
        self.assertEqual(limits - set(rows), set(), "not in the table of limits")
        self.assertEqual(set(rows) - set(self.flags), set(), "no such flag")
        for flag in limits:
            default = self.flags[flag]
            if (flag, default) != ("state-memory", "0"):
                self.assertRegex(rows[flag], rf"\b{re.escape(default)}\b", f"--{flag}: its default is {default}")

    def test_every_flag_is_explained_to_operators(self):
        documented = set(re.findall(r"--([a-z-]+)", self.readme))
        documented |= set(re.findall(r"--([a-z-]+)", (SOURCE / "README.md").read_text()))
        self.assertEqual(set(self.flags) - documented, set())


unittest.main(argv=sys.argv[:1], verbosity=2)

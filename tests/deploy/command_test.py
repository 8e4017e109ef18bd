"""What the documents say of gdpcache, the command, is what its --help says.

usage: command_test.py GDPCACHE SOURCE-DIRECTORY
"""

import pathlib
import re
import sys
import unittest

from command_line import options, subcommands

GDPCACHE, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
DOCUMENTS = ("README.md", "deploy/README.md", "client/python/README.md", "tests/bench/README.md")


def known_commands(*command):
    """Subcommand, as a tuple of words -> its options; those that only lead to others, too."""
    found = {command: options(GDPCACHE, *command)}
    for word in subcommands(GDPCACHE, *command):
        found |= known_commands(*command, word)
    return found


class CommandTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.commands = known_commands()
        cls.documents = {name: (SOURCE / name).read_text() for name in DOCUMENTS}
        section = re.search(r"^### The command\n(.*?)^###", cls.documents["README.md"], re.MULTILINE | re.DOTALL)
        cls.section = section.group(1)

    def command_of(self, line):
        """The longest subcommand that it begins with."""
        words = re.match(r"(?:[a-z]+ ?)*", line).group().split()
        return next(tuple(words[:n]) for n in range(len(words), -1, -1) if tuple(words[:n]) in self.commands)

    def test_every_subcommand_is_shown_and_its_help_for_the_options(self):
        for command in self.commands:
            line = " ".join(["gdpcache", *command])
            self.assertTrue(line in self.documents["README.md"], f"README.md does not show {line}")
        self.assertTrue("`gdpcache SUBCOMMAND --help`" in self.section)

    def test_every_option_that_is_named_is_one(self):
        every = set().union(*self.commands.values())
        self.assertEqual(set(re.findall(r"`(--[a-z-]+)", self.section)) - every, set())

    def test_what_is_to_be_typed_is_understood(self):
        lines = [
            (name, line)
            for name, text in self.documents.items()
            for code in re.findall(r"^```.*?^```|`[^`\n]+`", text, re.MULTILINE | re.DOTALL)
            for line in re.findall(r"(?:^|[`;|] ?)gdpcache ([a-z][^`#;|\n]*)", code, re.MULTILINE)
        ]
        self.assertGreater(len(lines), 10)
        for name, line in lines:
            command = self.command_of(line)
            self.assertTrue(command, f"{name}: there is no gdpcache {line}")
            self.assertEqual(set(re.findall(r"--[a-z-]+", line)) - self.commands[command], set(), f"{name}: {line}")


unittest.main(argv=sys.argv[:1], verbosity=2)

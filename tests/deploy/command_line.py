"""What the programs say to a command line, without doing what it says."""

import re
import subprocess

UNKNOWN = "--no-such-flag"


def mistakes(gdpcached, *flags):
    """What gdpcached has against these flags, and the files that they name: it tells all mistakes at once, so one that
    is certain keeps it from starting."""
    done = subprocess.run([gdpcached, *flags, UNKNOWN], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 2 or UNKNOWN not in done.stderr:
        raise RuntimeError(f"gdpcached ends with {done.returncode}: {done.stdout}{done.stderr}")
    lines = [line for line in done.stderr.splitlines() if UNKNOWN not in line and not line.startswith("Try '")]
    return [line for line in lines if line.strip()]


def _help(program, *subcommand):
    command = [program, *subcommand, "--help"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def options(program, *subcommand):
    """The options that it has, by --help."""
    return set(re.findall(r"^ *(--[a-z-]+)", _help(program, *subcommand), re.MULTILINE))


def subcommands(program, *subcommand):
    """Those of it, by --help."""
    # Newer releases of CLI11 shout.
    found = re.search(r"^(?i:subcommands):\n(.*?)^(?! )", _help(program, *subcommand), re.MULTILINE | re.DOTALL)
    return re.findall(r"^  ([a-z]+)", found.group(1), re.MULTILINE) if found else []


def default_of(program, option):
    return re.search(rf"^  {option}=.*?\(default:\s+([^)]*)\)", _help(program), re.MULTILINE | re.DOTALL).group(1)


def seconds(duration):
    """Of "90s", "2m"."""
    number, unit = re.fullmatch(r"(\d+)(s|m|h)", duration).groups()
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]

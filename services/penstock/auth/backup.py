"""Back-up and restore of auth's SQLite store, which the settings of auth name.

`python -m penstock.auth.backup save FOLDER` copies it while auth runs. `restore FOLDER` replaces it after its end.
"""

import argparse
import sys
from pathlib import Path

from penstock.auth.config import AuthConfig
from penstock.auth.store.sqlite.backup import BackupError, restore, save
from penstock.chassis.config import ConfigError, load

ACTIONS = {"save": save, "restore": restore}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.auth.backup", description=__doc__)
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("folder", type=Path, help="of the copy; `save` makes it")
    arguments = parser.parse_args()
    try:
        files = ACTIONS[arguments.action](_store_path(), arguments.folder)
    except (BackupError, ConfigError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.writelines(f"{each} {each.stat().st_size} bytes\n" for each in files)
    return 0


def _store_path() -> Path:
    location = load(AuthConfig, "auth").store_location
    if not location.is_file:
        raise BackupError("PENSTOCK_AUTH_STORE names no SQLite file; back up PostgreSQL with pg_dump")
    return Path(location.path)


if __name__ == "__main__":
    sys.exit(main())

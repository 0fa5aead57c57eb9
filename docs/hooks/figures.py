"""A hook of the site: serves what live figures take from the package: scripts, styles, and the vectors of words."""

import os
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

PACKAGE = "src/unmasked_lessons"
SERVED = {"figures/*.js": "live", "figures/*.css": "live", "data/*.u8": "assets"}  # files of the package, and where


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add them under the names by which pages know them: as links would lead to the package."""
    root = Path(config.config_file_path).parent
    found = ((source, folder) for pattern, folder in SERVED.items() for source in (root / PACKAGE).glob(pattern))
    for source, folder in sorted(found):
        uri = Path(os.path.relpath(source, config.docs_dir)).as_posix()
        # Else MkDocs leaves it out: it takes what begins with a dot, such as "../src", for hidden.
        file = File.generated(config, uri, abs_src_path=str(source), inclusion=InclusionLevel.INCLUDED)
        file.dest_uri = f"{folder}/{source.name}"
        files.append(file)
    return files

"""A hook of the site: serves the scripts and styles of live figures, which stand in the package beside their Python."""

import os
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

FOLDER = "src/unmasked/figures"
SERVED = "live"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add them under the names by which pages know them: as links would lead to the package."""
    root = Path(config.config_file_path).parent
    for source in sorted((root / FOLDER).iterdir()):
        if source.suffix in (".js", ".css"):
            uri = Path(os.path.relpath(source, config.docs_dir)).as_posix()
            # Else MkDocs leaves it out: it takes what begins with a dot, such as "../src", for hidden.
            file = File.generated(config, uri, abs_src_path=str(source), inclusion=InclusionLevel.INCLUDED)
            file.dest_uri = f"{SERVED}/{source.name}"
            files.append(file)
    return files

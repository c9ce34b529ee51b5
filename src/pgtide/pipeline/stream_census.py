"""The census of a stream's batch by the files that Spark has noted for it, without a job."""

from __future__ import annotations

from pgtide.log.follow import news_of
from pgtide.log.snapshot import DataFile
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path
from pgtide.pipeline.census import Census
from pgtide.pipeline.file_census import REMOTE_FILES, Between, census_of_files
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position

_LOCAL_COMMITS = 1000  # about 0.1 s


def stream_census(file: StateFile, changes: Storage, batch: int, after: Lsn) -> Census | None:
    """The census of a batch, of which rows up to ``after`` are left out.

    None where Spark has to take it: of the first batch, where a commit is parted or gone, or
    where they are too many to read one after the other.
    """
    files: list[DataFile] = []
    versions = file.versions_of(batch)
    most = REMOTE_FILES if changes.local is None else _LOCAL_COMMITS
    if versions is None or len(versions) > most:
        return None
    for version in versions:
        commit = changes.read(commit_path(version))
        if commit is None:
            return None
        files += news_of(commit)
    if not files:
        return None
    last = max(file.high for file in files)
    return census_of_files(changes, files, Between(Position(Lsn(after + 1)), last))

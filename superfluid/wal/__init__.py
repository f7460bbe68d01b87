"""The session log on disk: bytes that are durable before anybody hears of them. Start reading at ``log``."""

from superfluid.wal.files import Files, FileStat, OsFiles
from superfluid.wal.lock import DirectoryLock
from superfluid.wal.log import Log, LogStatistics, Opened
from superfluid.wal.reader import read_log

__all__ = ["DirectoryLock", "FileStat", "Files", "Log", "LogStatistics", "Opened", "OsFiles", "read_log"]

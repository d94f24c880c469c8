"""Where a model's files are: a folder, or a repository on Hugging Face. Both give any range of bytes of a file, so that
a gigabyte of tensors can be read of a model of 700.
"""

from pathlib import Path


class Folder:
    """The files of a folder, or one file and those that belong to it."""

    def __init__(self, path: Path):
        self.path = path if path.is_dir() else path.parent
        self.name = path.resolve().name if path.is_dir() else path.stem
        self.n_read = 0  # bytes

    def names(self) -> list[str]:
        return sorted(str(file.relative_to(self.path)) for file in self.path.rglob("*") if file.is_file())

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        with open(self.path / name, "rb") as file:
            file.seek(begin)
            data = file.read(-1 if end is None else end - begin)
        self.n_read += len(data)
        return data


class Repository:
    """The files of OWNER/NAME on Hugging Face, perhaps with @REVISION behind it."""

    def __init__(self, repository: str):
        import huggingface_hub

        self.path, _, revision = repository.partition("@")
        self.files = huggingface_hub.HfFileSystem()
        self.revision = revision or None
        self.name = self.path.split("/")[-1]
        self.n_read = 0

    def names(self) -> list[str]:
        found = self.files.find(self.path, revision=self.revision)
        return sorted(file.split("/", 2)[2] for file in (file.replace(f"@{self.revision}", "") for file in found))

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        # Without a cache, which would read megabytes ahead of each tensor.
        data = self.files.cat_file(
            f"{self.path}/{name}", start=begin, end=end, revision=self.revision, cache_type="none"
        )
        self.n_read += len(data)
        return data


def files_of(source: str) -> Folder | Repository:
    path = Path(source)
    if path.exists():
        return Folder(path)
    if source.startswith(("/", ".")) or source.count("/") != 1:
        raise FileNotFoundError(f"{source} is neither a file, nor a folder, nor OWNER/NAME")
    return Repository(source)

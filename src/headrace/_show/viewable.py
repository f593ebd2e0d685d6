"""What datasets and loaders show of themselves."""

from typing import Any, ClassVar


class Viewable:
    """The methods by which a dataset or loader shows its pipeline and its elements."""

    _kind_in_title: ClassVar[str] = "Pipeline"

    def view(self, *, title: str | None = None, port: int = 0, open_browser: bool = True) -> Any:
        """Serves a page on this machine that shows the pipeline while it runs, and what operations do to elements.

        It returns a `View` with the address, `url`, and `close()`. A script that has nothing else to do calls `wait()`.

        >>> with MapDataset.range(4).view(open_browser=False) as view:
        ...     view.url.startswith("http://127.0.0.1:")
        True

        Differs from Grain: only Headrace has it.

        Args:
            title: What the page is called; its kind by default.
            port: The port to serve at; any that is free by default.
            open_browser: Whether to open the page in a browser, if there is a screen.
        """
        from headrace import _view  # few programs need it

        return _view.view(self, title=title or self._kind_in_title, port=port, open_browser=open_browser)

    def show(self, n: int = 3) -> None:
        """Shows the first elements, in a notebook as HTML: images as images, tokens as text.

        >>> MapDataset.source([{"id": 7, "name": "a"}, {"id": 8, "name": "b"}]).show(2)
        id  name
         7  'a'
         8  'b'

        Differs from Grain: only Headrace has it.
        """
        from headrace import _show  # few programs need it

        _show.show(self, n)

    def _repr_html_(self) -> str:
        from headrace import _show

        return _show.dataset_html(self)

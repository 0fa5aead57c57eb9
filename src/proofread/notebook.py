"""The executed notebook of a page: its cells with what they gave, and its figures filled in."""

import nbformat.v4
from nbformat import NotebookNode

from .check import Checked


def notebook(checked: Checked) -> NotebookNode:
    """The page as Jupyter would have saved it after a run; cell ids are the cells' places, so that they stay."""
    cells = []
    for index, cell in enumerate(checked.page.cells):
        metadata = {"tags": list(cell.tags)} if cell.tags else {}
        if cell.is_code:
            outputs = [nbformat.from_dict(output) for output in checked.outputs(index)]
            made = nbformat.v4.new_code_cell(cell.source, outputs=outputs, metadata=metadata)
        else:
            made = nbformat.v4.new_markdown_cell(checked.of_cell(index)[0], metadata=metadata)
        made["id"] = f"cell-{index + 1}"
        cells.append(made)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made_notebook: NotebookNode = nbformat.v4.new_notebook(
        cells=cells, metadata={**kernel, "language_info": {"name": "python"}}
    )
    return made_notebook

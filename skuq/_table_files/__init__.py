"""Reading and writing tables in CSV (any common format) and Parquet, whole or in chunks."""

from skuq._table_files._csv_format import CsvFormat, TableFileError
from skuq._table_files._read import UNNAMED, TableFile, open_table
from skuq._table_files._write import check_writable, write_table

__all__ = [
    "UNNAMED",
    "CsvFormat",
    "TableFile",
    "TableFileError",
    "check_writable",
    "open_table",
    "write_table",
]

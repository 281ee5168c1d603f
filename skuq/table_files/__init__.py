"""Tables in files: CSV as it comes, and Parquet; whole or in chunks that bound memory."""

from skuq.table_files._csv_format import CsvFormat, TableFileError
from skuq.table_files._read import TableFile, open_table
from skuq.table_files._write import check_writable, write_table

__all__ = [
    "CsvFormat",
    "TableFile",
    "TableFileError",
    "check_writable",
    "open_table",
    "write_table",
]

"""What a pass leaves behind: marks on streams that become records, and NVTX ranges that other tools record."""

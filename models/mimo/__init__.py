"""MiMo-V2-Flash: DeepSeek-V3's experts, and attention whose values are narrower than its keys, mostly in windows."""

"""FlexGen's own benchmark (flex_opt.py, also of its H2O fork) under a cap on GPU memory and without the network.

    run_flexgen.py CAP_BYTES TOKENIZER_DIR FLEX_OPT.py ARGUMENTS...

The cap is torch's; the tokenizer, which FlexGen would fetch by name, comes from a folder. Nothing else is changed.
"""

import runpy
import sys

import torch
import transformers

cap_bytes, tokenizer, script = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / torch.cuda.mem_get_info()[1]))
fetch = transformers.AutoTokenizer.from_pretrained
transformers.AutoTokenizer.from_pretrained = lambda name, *args, **kwargs: fetch(tokenizer, *args, **kwargs)
sys.argv = sys.argv[3:]
runpy.run_path(script, run_name="__main__")

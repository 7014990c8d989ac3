"""The words of the results: kinds of architectures, verdicts, and the stages of a measurement that lead to them."""

TEXT, WRAPPED, BACKEND = "text", "multimodal", "Transformers backend"

EXACT, REFUSED, NOT_ON_CPU, DIFFERS, NO_CHECKPOINT = "exact", "refused", "not on CPU", "differs", "no checkpoint"
NOT_COMPARED = "not compared"
VERDICTS = (EXACT, REFUSED, DIFFERS, NOT_COMPARED, NOT_ON_CPU, NO_CHECKPOINT)
# Of stock vLLM, before its error.
STOPS = "stops: "

CHECKPOINT, STOCK, LADDER, REFERENCE = "making the checkpoint", "stock vLLM", "with a ladder", "the reference"
# What it means when a process ends by itself in a stage.
ENDED = {CHECKPOINT: NO_CHECKPOINT, STOCK: NOT_ON_CPU, LADDER: DIFFERS, REFERENCE: NOT_COMPARED}

# Architectures that generate text without rotary embeddings: a ladder has nothing to scale.
WITHOUT_ROTATION = {
    "BloomForCausalLM": "ALiBi",
    "Step1ForCausalLM": "ALiBi",
    "GPT2LMHeadModel": "learned positions",
    "GPTBigCodeForCausalLM": "learned positions",
    "OPTForCausalLM": "learned positions",
    "MambaForCausalLM": "state space",
    "Mamba2ForCausalLM": "state space",
    "FalconMambaForCausalLM": "state space",
    "InklingForCausalLM": "learned relative positions",
    "InklingForConditionalGeneration": "learned relative positions",
    "JambaForCausalLM": "no positions",
    "NemotronHForCausalLM": "no positions",
    "NemotronHPuzzleForCausalLM": "no positions",
    # vLLM or transformers stops where a config of these has positions.
    "Glm5NextForCausalLM": "no positions",
    "Glm5NextForConditionalGeneration": "no positions",
    "KimiLinearForCausalLM": "no positions",
    "KimiK3ForConditionalGeneration": "no positions",
    "Blip2ForConditionalGeneration": "OPT: learned positions",
    "WhisperForConditionalGeneration": "learned positions",
    "CohereAsrForConditionalGeneration": "learned positions",
    "NemotronParseForConditionalGeneration": "no positions",
    "NemotronH_Nano_VL_V2": "Nemotron-H: no positions",
    "NemotronH_Nano_Omni_Reasoning_V3": "Nemotron-H: no positions",
    "NemotronH_Super_Omni_Reasoning_V3": "Nemotron-H: no positions",
    "NemotronH_Omni_Reasoning_V3": "Nemotron-H: no positions",
}

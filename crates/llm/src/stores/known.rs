//! Names of models in Ollama's library, and the repositories that hold the same weights as GGUF.

/// `name:tag` of Ollama, and the hub's name of the same weights.
///
/// The first entry of a name is the one that it means without a tag.
const NAMES: &[(&str, &str)] = &[
    ("deepseek-r1:8b", "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF:Q4_K_M"),
    ("deepseek-r1:1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q4_K_M"),
    ("deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF:Q4_K_M"),
    ("gemma2:9b", "bartowski/gemma-2-9b-it-GGUF:Q4_K_M"),
    ("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF:Q4_K_M"),
    ("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
    ("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"),
    ("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF"),
    ("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"),
    ("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
    ("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
    ("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M"),
    ("nomic-embed-text:v1.5", "nomic-ai/nomic-embed-text-v1.5"),
    ("phi4:14b", "bartowski/phi-4-GGUF:Q4_K_M"),
    ("qwen2.5:7b", "bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"),
    ("qwen2.5:0.5b", "bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"),
    ("qwen2.5:1.5b", "bartowski/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"),
    ("qwen2.5:3b", "bartowski/Qwen2.5-3B-Instruct-GGUF:Q4_K_M"),
    ("qwen3:8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
    ("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
    ("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF:Q8_0"),
    ("qwen3:4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
    ("qwen3:14b", "Qwen/Qwen3-14B-GGUF:Q4_K_M"),
    ("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"),
    ("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M"),
    ("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF:Q4_K_M"),
    ("tinyllama:1.1b", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF:Q4_K_M"),
];

/// The hub's name of a model of Ollama's library, where it is known: `qwen3:0.6b`, `llama3.2`.
pub fn hub_name(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix(":latest").unwrap_or(&name);
    let is_it = |known: &str| {
        known == name || (!name.contains(':') && known.split(':').next() == Some(name))
    };
    NAMES.iter().find(|(known, _)| is_it(known)).map(|(_, hub)| *hub)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::HubId;

    #[test]
    fn every_name_is_written_once_and_leads_to_a_hub_id() {
        for (i, (name, hub)) in NAMES.iter().enumerate() {
            HubId::parse(hub).expect(hub);
            assert!(name.contains(':') && hub_name(name) == Some(hub), "{name}");
            assert!(NAMES[i + 1..].iter().all(|(other, _)| other != name), "{name} twice");
        }
        assert_eq!(hub_name("Llama3.2"), hub_name("llama3.2:3b"));
        assert_eq!(hub_name("qwen3:latest"), hub_name("qwen3:8b"));
        assert_eq!(hub_name("qwen3:999b"), None);
    }
}

# The formula of a release: replace `url` and `sha256` by those of its archive.
class Pelton < Formula
  desc "Run and serve language models on the processor you have"
  homepage "https://pelton.example"
  url "https://pelton.example/pelton-0.1.0.tar.gz"
  sha256 "0" * 64
  license any_of: ["Apache-2.0", "MIT"]
  head "https://pelton.example/pelton.git", branch: "main"

  depends_on "rust" => :build

  def install
    system "cargo", "install", "--profile", "dist", *std_cargo_args(path: "crates/cli")
    generate_completions_from_executable(bin/"pelton", "completions")
    man1.mkpath
    system bin/"pelton", "man", man1
  end

  service do
    run [opt_bin/"pelton", "serve"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/pelton --version")
    system bin/"pelton", "run", "Once upon a time", "--max-tokens", "8"
  end
end

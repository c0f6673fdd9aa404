// client: asks a worker that it does not join.
//
//   client unix:/tmp/example/worker.sock
//   client HOST:PORT --certs=DIR --as=client0 --worker=trainer0

#include <cstdio>

#include "examples/cpp_client/functions.h"
#include "weft/weft.h"

int main(int argc, char** argv) {
  std::string certs, as = "admin0";
  weft::worker::Flags flags("client", "Asks a worker that it does not join.");
  flags.AllowPositional("ADDRESS", /*anywhere=*/true);
  flags.Add("certs", &certs, "directory made by `weft certs init`");
  flags.Add("as", &as, "whose certificate to show");
  weft::rpc::ClientOptions options;
  flags.Add("worker", &options.worker, "whose certificate to want there");
  weft::ExitIfError(flags.Parse(argc, argv));
  if (flags.positional().size() != 1) {
    weft::ExitIfError(weft::worker::WithExitCode(
        absl::InvalidArgumentError("client: wanted ADDRESS, one word"),
        weft::worker::ExitCode::kUsage));
  }

  if (!certs.empty()) {
    auto read = weft::net::Credentials::ForMember(certs, as);
    weft::ExitIfError(read.status());
    options.credentials = *read;
  }
  auto client = weft::rpc::Client::Connect(flags.positional()[0], options);
  weft::ExitIfError(client.status());

  const std::vector<std::string> text = {"to", "be", "or", "not", "to", "be"};
  auto words = weft::rpc::CallAsync((*client)->To(), example::CountWords, text);
  auto y = weft::rpc::Call((*client)->To(absl::Seconds(5)), example::Scale,
                           weft::Tensor::FromVector<float>({1, 2, 3}), 0.5);
  weft::ExitIfError(y.status());
  for (float element : y->span<float>()) std::printf("%g ", element);
  auto counts = words.Wait(absl::Seconds(5));
  weft::ExitIfError(counts.status());
  std::printf("\nto: %d\n", static_cast<int>(counts->at("to")));
}

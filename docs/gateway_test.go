package docs

import (
	"os"
	"strings"
	"testing"
)

func TestTheWorkerOfTheGatewaysDocsIsTheExample(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../examples/gateway/worker.sh")
	if os.IsNotExist(err) {
		return // a server's user has no sources; the unit tests have
	}
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(gatewayDocs, "```sh\n"+string(example)+"```\n") {
		t.Error("gateway.md shows another worker.sh than examples/gateway/ has")
	}
}

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
	text, err := os.ReadFile("gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "<<'END'\n"+string(example)+"END\n") {
		t.Error("gateway.md shows another worker.sh than examples/gateway/ has")
	}
}

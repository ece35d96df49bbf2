package link

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"
)

// A message of the worker is understood as it was meant, ignored, or refused.
func FuzzACommandIsUnderstoodOrRefused(f *testing.F) {
	for _, s := range []string{"", "C", `C{"port":5432}`, "R", "R\x00\x00\x00\x05", "D\x00\x00\x00\x05\x00\x00\x00\x07", "E1234567", "A\xff\xff\xff\xff", "A1", "r1234", "x", "P", "P1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		c, known, err := parseCommand(packet)
		if err != nil || !known {
			return
		}
		again := []byte{byte(c.Kind)}
		switch c.Kind {
		case Reload:
			again = append(again, c.Settings...)
		case Everywhere:
			again = []byte{byte(Discover)}
		case Ping:
		case Leave, Return:
			again = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(again, c.Database), c.Ticket)
		default:
			again = binary.BigEndian.AppendUint32(again, c.Database)
		}
		if !bytes.Equal(again, packet) {
			t.Fatalf("%q is taken for %+v", packet, c)
		}
	})
}

// texts are the parts of a message, which end with a NUL each.
func textsOf(t *testing.T, packet []byte, want int) []string {
	t.Helper()
	parts := strings.Split(string(packet), "\x00")
	if len(packet) > MaxPacket || len(parts) != want+1 || parts[want] != "" {
		t.Fatalf("%d bytes with %d texts, want %d", len(packet), len(parts)-1, want)
	}
	return parts
}

// What the engine says fits into a message, whole or cut between characters, and has as many texts as the worker reads.
func FuzzWhatIsSaidFitsIntoAMessage(f *testing.F) {
	f.Add("message", "detail", "hint")
	f.Add(strings.Repeat("é", 9000), strings.Repeat("\x00", 9000), strings.Repeat("\xff", 9000))
	f.Fuzz(func(t *testing.T, message, detail, hint string) {
		said := textsOf(t, line('W', message, detail, hint)[2:], 3)
		for i, s := range []string{message, detail, hint} {
			if utf8.ValidString(s) && !utf8.ValidString(said[i]) {
				t.Fatalf("%q was cut within a character: %q", s, said[i])
			}
		}
		s := Status{Database: 5, Name: message, Phase: BackedOff, Slot: detail, Flushed: 7, States: 8, Err: hint, Warning: message}
		textsOf(t, s.packet()[22:], 4)
	})
}

func FuzzATextIsCutBetweenCharacters(f *testing.F) {
	f.Add("héé", 4)
	f.Add("x", -1)
	f.Add("\xff\xff\xff\xff\xff", 4)
	f.Fuzz(func(t *testing.T, s string, most int) {
		cut := Truncate(s, most)
		if len(s) <= most && cut != s || len(cut) > max(most, 0) || utf8.ValidString(s) && !utf8.ValidString(cut) {
			t.Fatalf("%q of %d bytes at most is %q", s, most, cut)
		}
	})
}

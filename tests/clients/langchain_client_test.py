"""LangChain's OpenAI classes: invoke, stream, batch, and chats of several turns."""

import unittest

import langchain_openai

from server import ServedTest


class LangChainTest(ServedTest):
    def settings(self, **more):
        return {"base_url": self.url + "/v1", "api_key": "any", "model": self.name(), "temperature": 0, "max_retries": 0,
                **more}

    def name(self):
        import openai
        return openai.OpenAI(base_url=self.url + "/v1", api_key="any").models.list().data[0].id

    def test_completions(self):
        model = langchain_openai.OpenAI(**self.settings(max_tokens=8))
        text = model.invoke("Emma Woodhouse")
        self.assertTrue(text)
        self.assertEqual("".join(model.stream("Emma Woodhouse")), text)
        self.assertEqual(model.batch(["Emma Woodhouse", "It is"])[0], text)

    def test_several_choices_keep_their_order(self):
        model = langchain_openai.OpenAI(**self.settings(max_tokens=4, n=2, best_of=1))
        generations = model.generate(["Emma", "It is"]).generations
        self.assertEqual([len(choices) for choices in generations], [2, 2])
        self.assertEqual(generations[0][0].text, generations[0][1].text)  # Greedy

    def test_chat(self):
        model = langchain_openai.ChatOpenAI(**self.settings(max_completion_tokens=8))
        answer = model.invoke([("system", "Be kind."), ("human", "Hi"), ("ai", "Hello."), ("human", "Who is Emma?")])
        self.assertTrue(answer.content)
        self.assertEqual(answer.usage_metadata["output_tokens"], 8)
        streamed = "".join(chunk.content for chunk in model.stream(
            [("system", "Be kind."), ("human", "Hi"), ("ai", "Hello."), ("human", "Who is Emma?")]))
        self.assertEqual(streamed, answer.content)


if __name__ == "__main__":
    unittest.main()
